// Unfold the part that a link leads to, unfold all parts for printing, and make long texts
// scrollable with the keyboard.
"use strict";
(() => {
  const open = (hash) => {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    for (let box = target?.closest("details"); box; box = box.parentElement.closest("details")) {
      box.open = true;
    }
    return target;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) open(link.hash);
  });
  open(location.hash)?.scrollIntoView();

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const box of opened) box.open = false;
  });

  const reach = () => {
    for (const box of document.querySelectorAll(".message, .points, .printed pre, .guide pre")) {
      const long = box.scrollHeight > box.clientHeight || box.scrollWidth > box.clientWidth;
      if (long) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  reach();
})();
