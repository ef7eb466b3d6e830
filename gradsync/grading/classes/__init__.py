"""What staff decide about a class: its roster, due times and corrections of grades."""
