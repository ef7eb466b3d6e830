"""MNIST on disk: find its folder, read and check its files, download them."""
