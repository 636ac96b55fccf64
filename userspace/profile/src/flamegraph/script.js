// Zoom, search, the tree from its leaves, and fit to the window. Names are only ever read and written as
// text. What is shown is in the address (#q=SEARCH&z=FRAME&i=1), so that a link shows the same.
(function () {
  "use strict";
  var svg = document.documentElement, margin = 12, column = 6.63, row = 18, foot = 34;
  var space = "http://www.w3.org/2000/svg", html = "http://www.w3.org/1999/xhtml";
  var total = Number(svg.getAttribute("data-total")) || 1;
  var nanoseconds = Number(svg.getAttribute("data-ns")) || 0;
  var byId = function (id) { return document.getElementById(id); };
  var head = byId("head"), details = byId("details"), figures = byId("figures");
  var controls = byId("controls"), matched = byId("matched"), canvas = byId("frames");
  var title = head.querySelector(".h"), subtitle = head.querySelector(".s"), note = svg.querySelector("#note");
  var full = { title: title.textContent, subtitle: subtitle.textContent };
  var input, buttons = {}, width = 1200, zoomed = null, isInverted = false, shown = null;
  // Above the frames, and painted after them: it stays in view.
  svg.appendChild(head);

  function frameOf(g) {
    var text = g.firstElementChild.textContent, end = text.indexOf("\n");
    return {
      g: g, rect: g.querySelector("rect"), text: g.querySelector("text"),
      name: text.slice(0, end), figures: text.slice(end + 1).replace(/^\(|\)$/g, ""), kind: g.getAttribute("class"),
      x: Number(g.getAttribute("data-x")), v: Number(g.getAttribute("data-v")), own: Number(g.getAttribute("data-o")),
      y: Number(g.querySelector("rect").getAttribute("y"))
    };
  }
  var upright = Array.prototype.map.call(canvas.children, frameOf), frames = upright, inverted = null;
  var top = upright[0].y;
  var byElement = new Map(upright.map(function (f) { return [f.g, f]; }));

  function percent(part, all) { return (100 * part / Math.max(all, 1)).toFixed(2) + " %"; }

  // East Asian characters take two columns.
  function fitting(name, room) {
    var used = 0, kept = "", text = "";
    for (var letter of name) {
      used += letter.codePointAt(0) >= 0x1100 && /[\u1100-\u115f\u2e80-\ud7a3\uf900-\ufe6f\uff00-\uff60]/.test(letter) ? 2 : 1;
      if (used > room) return kept + "…";
      text += letter;
      if (used < room) kept = text;
    }
    return text;
  }

  // The text in an element, shortened until it ends before `end`.
  function write(element, text, end) {
    element.textContent = text;
    var room = end - Number(element.getAttribute("x"));
    var length = element.getComputedTextLength ? element.getComputedTextLength() : 0;
    if (length > room) element.textContent = fitting(text, Math.max(3, Math.floor(text.length * room / length) - 1));
  }

  function label(frame, w) {
    var room = Math.floor((w - 7) / column);
    if (room < 3) { if (frame.text) frame.text.textContent = ""; return; }
    if (!frame.text) {
      frame.text = document.createElementNS(space, "text");
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
    if (buttons.reset) buttons.reset.style.display = zoomed ? "" : "none";
  }

  function fit() {
    var deepest = frames.reduce(function (y, f) { return Math.max(y, f.y); }, top);
    var height = deepest + row + foot;
    // The height decides whether there is a scroll bar, which takes from the width.
    svg.setAttribute("width", "100%");
    svg.setAttribute("height", height);
    width = Math.max(480, svg.clientWidth || window.innerWidth || 1200);
    svg.setAttribute("width", width);
    svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    // In a narrow window the title has the first line to itself, and the controls the second.
    var room = Number(controls.getAttribute("width")), isNarrow = width < 2 * room;
    controls.setAttribute("x", width - room - margin);
    controls.setAttribute("y", isNarrow ? 34 : 14);
    matched.setAttribute("x", width - margin);
    matched.setAttribute("y", isNarrow ? 99 : 77);
    write(title, full.title, isNarrow ? width - margin : width - room - 2 * margin);
    write(subtitle, full.subtitle, isNarrow ? width - room - 2 * margin : width - margin);
    if (note) note.setAttribute("y", height - 12);
    draw();
    describe(shown);
  }

  function follow() { head.setAttribute("transform", "translate(" + (window.scrollX || 0) + " " + (window.scrollY || 0) + ")"); }

  function describe(f) {
    shown = f;
    if (!f) { details.textContent = figures.textContent = ""; return; }
    // In a narrow window what was matched stands on the same line.
    var taken = matched.getAttribute("y") === details.getAttribute("y") && matched.textContent ? matched.getComputedTextLength() + margin : 0;
    write(details, f.name, width - margin - taken);
    var part = zoomed && f.y > zoomed.y ? "  ·  " + percent(f.v, zoomed.v) + " of shown" : "";
    write(figures, percent(f.v, total) + " of all" + part + (f.figures ? "  ·  " + f.figures.replace(/, \d+\.\d\d %/, "") : ""), width - margin);
  }

  function remember() {
    var parts = [];
    if (input.value) parts.push("q=" + encodeURIComponent(input.value));
    if (zoomed) parts.push("z=" + [zoomed.x, zoomed.v, zoomed.y].join("."));
    if (isInverted) parts.push("i=1");
    try { history.replaceState(null, "", "#" + parts.join("&")); }
    catch (e) { location.replace("#" + parts.join("&")); }
  }

  function zoom(frame) { zoomed = frame && frame.v < total ? frame : null; draw(); describe(shown); search(input.value); remember(); }

  function search(text) {
    var test = null, end = -1, sum = 0, within = 0;
    if (text) {
      try { var expression = new RegExp(text, "i"); test = function (s) { return expression.test(s); }; }
      catch (e) { var low = text.toLowerCase(); test = function (s) { return s.toLowerCase().indexOf(low) >= 0; }; }
    }
    var from = zoomed ? zoomed.x : 0, to = zoomed ? zoomed.x + zoomed.v : total;
    // Frames come callers first, so one inside a match that was counted is not counted again.
    frames.forEach(function (f) {
      var hit = !!test && test(f.name);
      f.g.classList.toggle("x", hit);
      if (hit && f.x >= end) {
        sum += f.v; end = f.x + f.v;
        within += Math.max(0, Math.min(end, to) - Math.max(f.x, from));
      }
    });
    matched.textContent = !text ? "" : "matched " + percent(sum, total) + " of all"
      + (zoomed ? ", " + percent(within, zoomed.v) + " of shown" : "");
  }

  // The tree from its leaves: below each function its callers. Built when it is first looked at.
  function invert() {
    var callers = [], root = { f: upright[0], v: total, under: new Map(), place: "" }, rest = new Map();
    upright.forEach(function (f) {
      while (callers.length && callers[callers.length - 1].y >= f.y) callers.pop();
      f.caller = callers[callers.length - 1] || null;
      callers.push(f);
      if (f.caller) rest.set(f.caller, (rest.has(f.caller) ? rest.get(f.caller) : f.caller.v) - f.v);
    });
    var narrow = { name: "(frames too narrow to be drawn)", kind: "u0", figures: "" };
    function add(at, f, value) {
      var key = f.kind + "\n" + f.name, next = at.under.get(key);
      if (!next) at.under.set(key, next = { f: f, v: 0, under: new Map(), place: placeOf(f) });
      // Lines of several callers differ.
      if (next.place !== placeOf(f)) next.place = next.place.replace(/:\d+(-\d+)?$/, "");
      next.v += value;
      return next;
    }
    upright.forEach(function (f) {
      var left = rest.has(f) ? rest.get(f) : f.v;
      // Values of a comparison say no own part: all that is left is taken for it.
      var own = f.own || f.g.hasAttribute("data-o") || !hasOwn ? Math.min(f.own || left, left) : 0;
      [[own, false], [left - own, true]].forEach(function (part) {
        if (part[0] <= 0) return;
        var at = part[1] ? add(root, narrow, part[0]) : root;
        for (var g = f; g && g !== upright[0]; g = g.caller) at = add(at, g, part[0]);
      });
    });
    var made = [], layer = document.createElementNS(space, "g"), values = [];
    (function collect(node) { values.push(node.v); node.under.forEach(collect); })(root);
    values.sort(function (a, b) { return b - a; });
    // The widest only, so that a browser moves the picture smoothly.
    var smallest = Math.max(total * 0.3 / 1200, values.length > 20000 ? values[20000] + 1 : 0);
    layer.id = "inverted";
    (function place(node, x, depth) {
      made.push(drawn(node, x, depth, layer));
      if (depth > 1200) return;
      Array.from(node.under.values()).filter(function (n) { return n.v >= smallest; })
        .sort(function (a, b) { return b.v - a.v; })
        .forEach(function (n) { place(n, x, depth + 1); x += n.v; });
    })(root, 0, 0);
    canvas.parentNode.insertBefore(layer, canvas.nextSibling);
    layer.addEventListener("click", onClick);
    layer.addEventListener("mouseover", onOver);
    return made;
  }
  var hasOwn = upright.some(function (f) { return f.g.hasAttribute("data-o"); });

  // Of a frame's figures, what is the same in every place of the tree: kind, module, file and line.
  function placeOf(f) {
    // Figures of a comparison hold only for their own stack.
    return f.figures.indexOf(" → ") >= 0 ? "" : f.figures.replace(/^.*?\d+\.\d\d %(, self \d+\.\d\d %)?(, )?/, "");
  }

  function time(value) {
    var s = value * nanoseconds / 1e9;
    if (s < 1e-3) return (s * 1e6).toFixed(1) + " µs";
    if (s < 1) return (s * 1e3).toFixed(1) + " ms";
    if (s < 120) return s.toFixed(2) + " s";
    if (s < 7200) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
    return Math.floor(s / 3600) + " h " + Math.floor(s / 60 % 60) + " min";
  }

  function figuresOf(node, depth) {
    var parts = [nanoseconds ? time(node.v) : "", node.place, depth === 1 ? "its own, without what it calls" : ""];
    return parts.filter(Boolean).join(", ");
  }

  function drawn(node, x, depth, layer) {
    var g = document.createElementNS(space, "g"), rect = document.createElementNS(space, "rect");
    g.setAttribute("class", (node.f.kind || "").split(" ")[0]);
    rect.setAttribute("y", top + depth * row);
    rect.setAttribute("height", row - 1);
    rect.setAttribute("rx", 2);
    g.appendChild(rect);
    layer.appendChild(g);
    var f = { g: g, rect: rect, text: null, name: node.f.name, figures: figuresOf(node, depth), kind: node.f.kind, x: x, v: node.v, y: top + depth * row };
    byElement.set(g, f);
    return f;
  }

  function turn(on) {
    isInverted = on;
    if (on && !inverted) inverted = invert();
    frames = on ? inverted : upright;
    canvas.style.display = on ? "none" : "";
    if (byId("inverted")) byId("inverted").style.display = on ? "" : "none";
    buttons.invert.classList.toggle("on", on);
    zoomed = null;
    fit();
    search(input.value);
  }

  function button(name, text, hint, action) {
    var made = buttons[name] = document.createElementNS(html, "button");
    made.id = name;
    made.textContent = text;
    made.setAttribute("title", hint);
    made.addEventListener("click", action);
    return made;
  }

  function build() {
    var box = document.createElementNS(html, "div");
    box.style.cssText = "display:flex;justify-content:flex-end";
    input = document.createElementNS(html, "input");
    input.id = "search";
    input.setAttribute("placeholder", "Search (text or regex)");
    input.addEventListener("input", function () { search(input.value); remember(); });
    box.appendChild(button("reset", "Reset zoom", "Show all again (Escape)", function () { zoom(null); }));
    box.appendChild(button("invert", "Invert", "Functions by their own time, their callers below them", function () { turn(!isInverted); remember(); }));
    input.style.marginLeft = "6px";
    box.appendChild(input);
    controls.appendChild(box);
  }

  function recall() {
    var wanted = {};
    location.hash.slice(1).split("&").forEach(function (part) {
      var at = part.indexOf("=");
      if (at > 0) { try { wanted[part.slice(0, at)] = decodeURIComponent(part.slice(at + 1)); } catch (e) { /* not ours */ } }
    });
    input.value = wanted.q || "";
    turn(wanted.i === "1");
    var place = (wanted.z || "").split(".").map(Number);
    zoomed = frames.find(function (f) { return place.length === 3 && f.x === place[0] && f.v === place[1] && f.y === place[2] && f.v < total; }) || null;
    draw();
    search(input.value);
  }

  function frameAt(event) { return byElement.get(event.target.closest("#frames > g, #inverted > g")); }
  function onClick(event) { var f = frameAt(event); if (f) { describe(f); zoom(f); } }
  function onOver(event) { var f = frameAt(event); if (f) describe(f); }
  canvas.addEventListener("click", onClick);
  canvas.addEventListener("mouseover", onOver);
  window.addEventListener("keydown", function (event) {
    if (event.key === "Escape") { input.value = ""; search(""); zoom(null); input.blur(); }
    else if ((event.key === "/" && document.activeElement !== input) || (event.key === "f" && (event.ctrlKey || event.metaKey))) {
      event.preventDefault(); input.focus(); input.select();
    }
  });
  window.addEventListener("resize", fit);
  window.addEventListener("scroll", follow);
  window.addEventListener("hashchange", recall);
  build();
  recall();
  follow();
})();
