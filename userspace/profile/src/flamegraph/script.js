// Zoom, search and fit to the window. Names are only ever read and written as text.
(function () {
  "use strict";
  var svg = document.documentElement, margin = 12, column = 6.63;
  var total = Number(svg.getAttribute("data-total")) || 1;
  var byId = function (id) { return document.getElementById(id); };
  var details = byId("details"), controls = byId("controls"), input, matched = byId("matched");
  var width = 1200, zoomed = null;

  var frames = Array.prototype.map.call(byId("frames").children, function (g) {
    var title = g.firstElementChild.textContent;
    return {
      g: g, rect: g.querySelector("rect"), text: g.querySelector("text"), title: title,
      name: title.slice(0, title.lastIndexOf("\n")),
      x: Number(g.getAttribute("data-x")), v: Number(g.getAttribute("data-v")),
      y: Number(g.querySelector("rect").getAttribute("y"))
    };
  });

  // East Asian characters take two columns.
  function fitting(name, room) {
    var used = 0, kept = "", shown = "";
    for (var letter of name) {
      used += letter.codePointAt(0) >= 0x1100 && /[\u1100-\u115f\u2e80-\ud7a3\uf900-\ufe6f\uff00-\uff60]/.test(letter) ? 2 : 1;
      if (used > room) return kept + "…";
      shown += letter;
      if (used < room) kept = shown;
    }
    return shown;
  }

  function label(frame, w) {
    var room = Math.floor((w - 7) / column);
    if (room < 3) { if (frame.text) frame.text.textContent = ""; return; }
    if (!frame.text) {
      frame.text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      frame.text.setAttribute("y", frame.y + 13);
      frame.g.appendChild(frame.text);
    }
    frame.text.textContent = fitting(frame.name, room);
  }

  function draw() {
    var from = zoomed ? zoomed.x : 0, span = zoomed ? zoomed.v : total, inner = width - 2 * margin;
    frames.forEach(function (f) {
      var above = zoomed && f.y < zoomed.y, left, w;
      if (above) {
        if (f.x > from || f.x + f.v < from + span) { f.g.style.display = "none"; return; }
        left = 0; w = inner;
      } else {
        left = (f.x - from) / span * inner; w = f.v / span * inner;
        if (f.x < from || f.x + f.v > from + span || w < 0.25) { f.g.style.display = "none"; return; }
      }
      f.g.style.display = "";
      f.g.classList.toggle("p", !!above);
      f.rect.setAttribute("x", (margin + left).toFixed(2));
      f.rect.setAttribute("width", Math.max(w - (w > 3 ? 0.6 : 0), 0.25).toFixed(2));
      label(f, w);
      if (f.text) f.text.setAttribute("x", (margin + left + 4).toFixed(2));
    });
    var reset = byId("reset");
    if (reset) reset.style.display = zoomed ? "" : "none";
  }

  function fit() {
    width = Math.max(640, window.innerWidth || 1200);
    var height = svg.getAttribute("height");
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    controls.setAttribute("x", width - 320 - margin);
    matched.setAttribute("x", width - margin);
    draw();
  }

  function zoom(frame) { zoomed = frame && frame.v < total ? frame : null; draw(); }

  function search(text) {
    var test = null, end = -1, sum = 0;
    if (text) {
      try { var expression = new RegExp(text, "i"); test = function (s) { return expression.test(s); }; }
      catch (e) { var low = text.toLowerCase(); test = function (s) { return s.toLowerCase().indexOf(low) >= 0; }; }
    }
    // Frames come callers first, so one inside a match that was counted is not counted again.
    frames.forEach(function (f) {
      var hit = !!test && test(f.name);
      f.g.classList.toggle("x", hit);
      if (hit && f.x >= end) { sum += f.v; end = f.x + f.v; }
    });
    matched.textContent = text ? "matched " + (100 * sum / total).toFixed(2) + " % of all" : "";
  }

  function build() {
    var html = "http://www.w3.org/1999/xhtml";
    var box = document.createElementNS(html, "div");
    box.style.cssText = "display:flex;justify-content:flex-end";
    input = document.createElementNS(html, "input");
    input.setAttribute("placeholder", "Search (text or regex)");
    input.addEventListener("input", function () { search(input.value); });
    var reset = document.createElementNS(html, "button");
    reset.id = "reset";
    reset.textContent = "Reset zoom";
    reset.addEventListener("click", function () { zoom(null); });
    box.appendChild(input);
    box.appendChild(reset);
    controls.appendChild(box);
  }

  var byElement = new Map(frames.map(function (f) { return [f.g, f]; }));
  function frameOf(event) { return byElement.get(event.target.closest("#frames > g")); }
  byId("frames").addEventListener("click", function (event) { var f = frameOf(event); if (f) zoom(f); });
  byId("frames").addEventListener("mouseover", function (event) {
    var f = frameOf(event);
    if (f) details.textContent = f.title.replace(/\n/g, "   ");
  });
  byId("frames").addEventListener("mouseleave", function () { details.textContent = ""; });
  window.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { input.value = ""; search(""); zoom(null); input.blur(); }
    else if ((event.key === "/" && document.activeElement !== input) || (event.key === "f" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault(); input.focus(); input.select();
    }
  });
  window.addEventListener("resize", fit);
  build();
  fit();
})();
