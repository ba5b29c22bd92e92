// Everything works without this but the charts: it adds live figures, progress, and the key for searching.
"use strict";

// A slash goes to the search of the page.
document.addEventListener("keydown", event => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("[data-search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
});

// A live list is replaced as a whole: the focus stays where it was, and what was scrolled stays scrolled.
const place = live => ({
  focus: live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null,
  inRegion: document.activeElement.closest("#live .scroll") === document.activeElement,
  scrolled: [...live.querySelectorAll(".scroll")].map(each => each.scrollLeft),
});
let left = null;
document.addEventListener("htmx:beforeSwap", event => {
  if (event.detail.target.id !== "live") return;
  // Whoever is no longer signed in gets the form, which has no list.
  if (new URL(event.detail.xhr.responseURL).pathname === "/sign-in") {
    event.detail.shouldSwap = false;
    window.location.reload();
    return;
  }
  // Whoever marks an id to copy it would lose the mark.
  const marked = window.getSelection();
  if (!marked.isCollapsed && event.detail.target.contains(marked.anchorNode)) event.detail.shouldSwap = false;
  else left = place(event.detail.target);
});
document.addEventListener("htmx:load", () => {
  const live = document.getElementById("live");
  if (!left || !live) return;
  const regions = [...live.querySelectorAll(".scroll")];
  regions.forEach((each, number) => { each.scrollLeft = left.scrolled[number] ?? 0; });
  const again = left.inRegion ? regions[0] : left.focus && live.querySelector(`a[href="${CSS.escape(left.focus)}"]`);
  if (again) again.focus({ preventScroll: true });
  left = null;
});

// A list that cannot go on says so, and since when.
let fresh = Date.now();
const away = told => {
  const place = document.getElementById("away");
  if (told && place.hidden) place.querySelector("time").textContent = new Date(fresh).toISOString().slice(11, 19);
  place.hidden = !told;
};
for (const kind of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) document.addEventListener(kind, () => away(true));
document.addEventListener("htmx:load", () => {
  fresh = Date.now();
  away(false);
});

// Forms whose answer is a line of JSON for each step.
document.addEventListener("submit", async event => {
  const form = event.target;
  if (!form.matches("form[data-progress]")) return;
  event.preventDefault();
  if (form.dataset.confirm && !window.confirm(form.dataset.confirm)) return;
  const told = form.querySelector(".progress"), bar = form.querySelector("progress");
  const buttons = form.querySelectorAll("button"), focused = document.activeElement;
  buttons.forEach(each => { each.disabled = true; });
  bar.hidden = false;
  let last = {};
  try {
    const answer = await fetch(form.action, {
      method: "POST", headers: { accept: "application/x-ndjson" }, body: new URLSearchParams(new FormData(form)),
    });
    if (!answer.ok) throw new Error(`refused with status ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) last = JSON.parse(line);
      tell(told, bar, last);
    }
    if (!last.done) throw new Error("the answer broke off; what was done before is done");
  } catch (error) {
    last = { error: error.message };
  }
  tell(told, bar, last);
  bar.hidden = true;
  buttons.forEach(each => { each.disabled = false; });
  // A button that is disabled loses the focus: whoever uses the keyboard would go on from the top of the page.
  if (form.contains(focused) && document.activeElement === document.body) focused.focus({ preventScroll: true });
});

function tell(told, bar, step) {
  if (step.total) { bar.max = step.total; bar.value = step.examined; }
  const words = { redriven: "delivered again", left: "left as they are", deleted: "deleted" };
  const counts = Object.keys(words).filter(name => name in step).map(name => `${step[name]} ${words[name]}`);
  told.textContent = step.error ? `It failed: ${step.error}` : counts.join(", ") + (step.done ? "." : " …");
}

// Charts of the overview: the last minutes, from figures that are asked for every two seconds.
const EVERY = 2000, MOST = 150;
// UTC, as all times of the console.
const clock = (_, seconds) => seconds.map(each => new Date(each * 1000).toISOString().slice(11, 19));

function charts() {
  const place = document.querySelector("[data-figures]");
  if (!place || !window.uPlot) return;
  // A canvas does not know light-dark(): an element does, and tells what it makes of it.
  const sample = document.createElement("span");
  place.append(sample);
  const colour = name => {
    sample.style.color = `var(${name})`;
    return getComputedStyle(sample).color;
  };
  const times = [], lines = { released: [[]], pending: [[], []] };
  let before = null;
  const made = {};
  const make = () => {
    for (const [name, labels] of [["released", ["per second"]], ["pending", ["pending", "parked"]]]) {
      const target = place.querySelector(`[data-chart=${name}]`);
      if (made[name]) made[name].destroy();
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      made[name] = new window.uPlot({
        width: target.clientWidth, height: 190, legend: { show: false }, cursor: { y: false },
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
        axes: [{ ...axis, values: clock, space: 80 }, { ...axis, size: 60 }],
        series: [{}, ...labels.map((label, number) => ({
          label, stroke: colour(number ? "--alarm" : "--accent"), dash: number ? [6, 4] : [], width: 2, points: { show: false },
        }))],
      }, [times, ...lines[name]], target);
    }
  };
  make();
  window.addEventListener("resize", make);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", make);
  const look = async () => {
    if (!document.hidden) {
      try {
        const now = await (await fetch(place.dataset.figures)).json();
        // Without a time nothing was counted yet.
        if (before && now.time > before.time) {
          times.push(now.time);
          lines.released[0].push(Math.max(0, (now.released - before.released) / (now.time - before.time)));
          lines.pending[0].push(now.prepared);
          lines.pending[1].push(now.parked);
          if (times.length > MOST) for (const each of [times, ...lines.released, ...lines.pending]) each.shift();
          for (const name of Object.keys(made)) made[name].setData([times, ...lines[name]]);
          for (const [name, line] of [["released", lines.released[0]], ["prepared", lines.pending[0]], ["parked", lines.pending[1]]]) {
            place.querySelector(`[data-now=${name}]`).textContent = Math.round(line.at(-1) * 10) / 10;
          }
          place.dataset.points = times.length;
        }
        if (now.time && (!before || now.time > before.time)) before = now;
      } catch { /* The broker is away; the next look may find it. */ }
    }
    setTimeout(look, EVERY);
  };
  look();
}
charts();
