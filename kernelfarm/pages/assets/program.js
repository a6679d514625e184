"use strict";
(() => {
const MOST_FOUND = 200;

// ---- data: base64 of a zlib stream of JSON, kept once it was read
const known = new WeakMap();
async function unpacked(script) {
  if (!known.has(script)) {
    const bytes = Uint8Array.from(atob(script.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    known.set(script, await new Response(stream).json());
  }
  return known.get(script);
}
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- which lines correspond: node -> statement -> source line, and back
function linked(pane, line, data, variant) {
  const marks = pane.marks[line] || [];
  const found = {n: new Set(), s: new Set(), l: new Set()};
  if (!pane.kind || !marks.length) return found;
  marks.forEach((mark) => found[pane.kind].add(mark));
  if (pane.kind === "l") marks.forEach((at) => (variant.statementsOf[at] || []).forEach((s) => found.s.add(s)));
  if (pane.kind === "n") data.nodesOf.forEach((nodes, s) => { if (nodes.some((n) => found.n.has(n))) found.s.add(s); });
  else found.s.forEach((s) => data.nodesOf[s].forEach((n) => found.n.add(n)));
  if (pane.kind !== "l") {
    Object.entries(variant.statementsOf).forEach(([at, statements]) => {
      if (statements.some((s) => found.s.has(s))) found.l.add(Number(at));
    });
  }
  return found;
}

// ---- a list of lines: one stop for the Tab key, arrow keys inside
let counter = 0;
function lineList(name, lines, onActive) {
  const prefix = `list${counter++}`;
  const list = element("ol", {className: "lines", tabIndex: 0});
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-multiselectable", "true");
  list.setAttribute("aria-label", `${name}, ${lines.length} lines`);
  lines.forEach((text, index) => {
    const item = element("li", {id: `${prefix}-${index}`, value: index + 1, textContent: text || " "});
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    list.append(item);
  });
  list.activate = (index) => {
    const at = Math.max(0, Math.min(lines.length - 1, index));
    list.current = at;
    list.setAttribute("aria-activedescendant", `${prefix}-${at}`);
    show(list, list.children[at]);
    onActive(at);
  };
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) list.activate(item.value - 1);
  });
  list.addEventListener("keydown", (event) => {
    const moves = {ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9};
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey || !lines.length) return;
    event.preventDefault();
    list.activate(list.current === undefined ? 0 : list.current + moves[event.key]);
  });
  return list;
}
function show(list, item) {
  if (!item) return;
  const top = item.offsetTop, bottom = top + item.offsetHeight;
  if (top < list.scrollTop || bottom > list.scrollTop + list.clientHeight) {
    list.scrollTop = top - list.clientHeight / 3;
  }
}

// ---- the stages of one kernel
function stagesOf(holder, data) {
  const tools = element("div", {className: "stage-tools"});
  tools.setAttribute("role", "group");
  tools.setAttribute("aria-label", "Stages that are shown");
  const panes = element("div", {className: "panes"});
  const status = element("p", {className: "how"});
  status.setAttribute("role", "status");
  const shown = new Set(["aten", "loops", "triton", "llir"]);
  let made = [];
  let variant = data.variants[data.variants.length - 1];
  if (data.variants.length > 1) {
    const choice = element("select", {});
    data.variants.forEach((v, index) => choice.append(new Option(v.name, index, v === variant, v === variant)));
    choice.addEventListener("change", () => { variant = data.variants[choice.value]; build(); });
    holder.append(element("label", {textContent: "Variant "}, choice));
  }
  function activate(pane, line) {
    const found = linked(pane, line, data, variant);
    const counts = [];
    made.forEach((other) => {
      let first = null, count = 0;
      Array.from(other.list.children).forEach((item, index) => {
        const isActive = other.pane === pane && index === line;
        const marks = other.pane.marks[index] || [];
        const isMarked = other.pane.kind !== "" && marks.some((mark) => found[other.pane.kind].has(mark));
        item.classList.toggle("active", isActive);
        item.classList.toggle("marked", isMarked);
        item.setAttribute("aria-selected", String(isActive || isMarked));
        if (isMarked) { count += 1; first = first || item; }
      });
      if (other.pane !== pane) { show(other.list, first); if (count) counts.push(`${count} in ${other.pane.name}`); }
    });
    status.textContent = `${pane.name}, line ${line + 1}: ` + (counts.length ? `corresponding lines: ${counts.join(", ")}` : "no corresponding line is recorded");
  }
  function build() {
    tools.replaceChildren();
    panes.replaceChildren();
    made = [];
    const all = [...data.common, ...data.panes.filter((pane) => data.variants[pane.variant] === variant)];
    if (!all.some((pane) => pane.name === "triton")) shown.add("llir");
    all.forEach((pane) => {
      const box = element("section", {className: "pane"}, element("h4", {textContent: pane.name}), element("p", {className: "how", textContent: pane.how}));
      box.setAttribute("aria-label", pane.name);
      const list = lineList(pane.name, pane.lines, (line) => activate(pane, line));
      if (pane.lines.length) box.append(list);
      const button = element("button", {type: "button", textContent: pane.name});
      const toggle = (isShown) => {
        box.hidden = !isShown;
        button.setAttribute("aria-pressed", String(isShown));
        if (isShown) shown.add(pane.name); else shown.delete(pane.name);
      };
      button.addEventListener("click", () => toggle(box.hidden));
      toggle(shown.has(pane.name));
      tools.append(button);
      panes.append(box);
      made.push({pane, list, toggle});
    });
  }
  build();
  holder.append(tools, status, panes);
  return (variantIndex, name, line) => {
    if (variantIndex !== undefined && data.variants[variantIndex] !== variant) {
      variant = data.variants[variantIndex];
      holder.querySelector("select").value = variantIndex;
      build();
    }
    const wanted = made.find((other) => other.pane.name === name);
    wanted.toggle(true);
    wanted.list.activate(line);
    wanted.list.focus();
  };
}
const opened = new WeakMap();
function openKernel(details) {
  if (!opened.has(details)) {
    opened.set(details, (async () => {
      const holder = details.querySelector("[data-fill]");
      try {
        return stagesOf(holder, await unpacked(details.querySelector("script")));
      } catch (error) {
        holder.append(element("p", {className: "notice", textContent: `The stages cannot be shown: ${error}. Expected a browser with DecompressionStream.`}));
        return () => {};
      }
    })());
  }
  return opened.get(details);
}

// ---- one program
document.querySelectorAll(".program").forEach((program) => {
  const kernels = Array.from(program.querySelectorAll(".kernel"));
  const count = program.querySelector(".count");
  const foundList = program.querySelector(".found");
  kernels.forEach((details) => details.addEventListener("toggle", () => { if (details.open) openKernel(details); }));

  const texts = program.querySelector(".texts");
  texts.addEventListener("toggle", async () => {
    const holder = texts.querySelector("[data-fill]");
    if (!texts.open || holder.childElementCount) return;
    const data = await unpacked(document.getElementById(`${program.dataset.prefix}-texts`));
    Object.entries(data).forEach(([name, text]) => {
      const lines = text.replace(/\n$/, "").split("\n");
      holder.append(element("section", {className: "pane"}, element("h4", {textContent: name}), lineList(name, lines, () => {})));
    });
  });

  program.querySelector(".filter").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    kernels.forEach((details) => {
      const text = details.dataset.text.toLowerCase();
      details.hidden = !words.every((word) => text.includes(word));
      left += details.hidden ? 0 : 1;
    });
    count.textContent = `${left} of ${kernels.length} kernels`;
  });

  let search = 0;
  program.querySelector(".search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const mine = ++search;
    const wanted = program.querySelector(".query").value.toLowerCase();
    foundList.replaceChildren();
    if (!wanted) { count.textContent = `${kernels.length} kernels`; return; }
    let total = 0;
    for (const details of kernels) {
      const data = await unpacked(details.querySelector("script"));
      if (mine !== search) return;
      const name = details.querySelector(".name").textContent;
      [...data.common, ...data.panes].forEach((pane) => pane.lines.forEach((text, line) => {
        if (!text.toLowerCase().includes(wanted)) return;
        total += 1;
        if (total > MOST_FOUND) return;
        const link = element("a", {href: `#${details.id}`, textContent: `${name}, ${pane.name} ${line + 1}: ${text.trim()}`});
        link.addEventListener("click", async (clicked) => {
          clicked.preventDefault();
          details.hidden = false;
          details.open = true;
          const go = await openKernel(details);
          go(pane.variant, pane.name, line);
        });
        foundList.append(element("li", {}, link));
      }));
    }
    count.textContent = `${total} lines found` + (total > MOST_FOUND ? `; the first ${MOST_FOUND} are listed` : "");
  });

  const boxes = Array.from(program.querySelectorAll(".box"));
  const graph = program.querySelector(".graph");
  if (graph) graph.addEventListener("keydown", (event) => {
    const moves = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1};
    const at = boxes.indexOf(document.activeElement);
    if (at < 0 || !(event.key in moves)) return;
    event.preventDefault();
    const next = boxes[Math.max(0, Math.min(boxes.length - 1, at + moves[event.key]))];
    boxes[at].setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });
});

// ---- links to a kernel or a step open what contains it
function follow() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  target.hidden = false;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const stop = target.tagName === "DETAILS" ? target.querySelector("summary") : target;
  stop.scrollIntoView({block: "start"});
  stop.focus({preventScroll: true});
}
window.addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.getAttribute("href") === location.hash) follow();
});
if (location.hash) follow();
})();
