"use strict";
// Before the page is painted: the theme that the reader chose last, if storage can be read.
try {
  const chosen = localStorage.getItem("syncless-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch (_) { /* a file opened without storage follows the system */ }
