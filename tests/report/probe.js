// What a reader would call broken: a list of sentences, empty for a sound page.
(() => {
  const found = [];
  const say = (what, text) => { if (found.length < 20) found.push(`${what}: ${String(text).trim().slice(0, 80)}`); };
  const width = window.innerWidth;
  if (document.documentElement.scrollWidth > width) say("the page scrolls sideways", document.documentElement.scrollWidth);
  for (const place of document.querySelectorAll(".scroll, pre, .plot, select, .tools, nav, table")) {
    if (place.scrollWidth > place.clientWidth + 1 && place.clientWidth) say(`${place.tagName} ${place.className} scrolls sideways`, place.textContent);
  }

  // Text of the page: where each piece is, and that it is inside the window and inside what cuts it off.
  const visible = (element) => element.checkVisibility({ visibilityProperty: true }) && !element.closest("svg, script, style, option");
  const pieces = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !visible(node.parentElement)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      if (box.left < -1 || box.right > width + 1) say("text outside the window", node.data);
      pieces.push({ box, text: node.data });
    }
    for (let parent = node.parentElement; parent; parent = parent.parentElement) {
      const style = getComputedStyle(parent);
      if (!["hidden", "clip"].includes(style.overflowX) && !["hidden", "clip"].includes(style.overflowY)) continue;
      const own = parent.getBoundingClientRect(), box = range.getBoundingClientRect();
      if (box.right > own.right + 1 || box.bottom > own.bottom + 1 || box.left < own.left - 1) say("text cut off", node.data);
    }
  }

  // Text of the plots: inside its drawing.
  for (const drawing of document.querySelectorAll("svg.main-svg")) {
    const frame = drawing.getBoundingClientRect();
    const texts = drawing.querySelectorAll(".xtick text, .ytick text, .xtitle, .ytitle, .legendtext, .textpoint text, .heatmap-label text");
    for (const text of texts) {
      const box = text.getBoundingClientRect();
      if (box.width < 1 || !text.textContent.trim()) continue;
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        say(`text of ${drawing.closest("[data-plot]").dataset.plot} is cut off`, text.textContent);
      pieces.push({ box, text: text.textContent, turned: text.getAttribute("transform")?.includes("rotate(") && !/rotate\((-?0|0)[,)]/.test(text.getAttribute("transform")) });
    }
  }

  // No two pieces on each other. Turned text is left out: its box is larger than it.
  const flat = pieces.filter((piece) => !piece.turned).sort((a, b) => a.box.top - b.box.top);
  for (let n = 0; n < flat.length; n += 1) {
    const a = flat[n].box;
    for (let m = n + 1; m < flat.length && flat[m].box.top < a.bottom - 3; m += 1) {
      const b = flat[m].box;
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3 && Math.min(a.bottom, b.bottom) - b.top > 3)
        say("texts on each other", `${flat[n].text.trim().slice(0, 30)} | ${flat[m].text.trim().slice(0, 30)}`);
    }
  }
  return found;
})()
