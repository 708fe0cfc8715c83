// Keeps in place what a person is about to click. While the pointer moves over the page, or rests on a control, boxes keep their
// height and lists their order; figures and words in them go on. The next look after that shows everything as it is.

/** After the pointer moved last, and while it rests on a control. */
const MOVED_MS = 3000;
const ON_CONTROL_MS = 20_000;
const CONTROLS = "a, button, input, select, label";

let at = -Infinity;
let target = null;
let rests = false;

function pointed(event) {
  at = performance.now();
  target = event.target instanceof Element ? event.target : null;
  rests = event.pointerType !== "touch" && Boolean(target?.closest(CONTROLS));
}
for (const kind of ["pointermove", "pointerdown", "pointerup"]) addEventListener(kind, pointed, { capture: true, passive: true });

/** Whether a person points at this element or into it. */
export function pointsAt(root) {
  return target !== null && root.contains(target) && performance.now() - at < (rests ? ON_CONTROL_MS : MOVED_MS);
}

/** Boxes that keep their height while a person points at something in `page`; what does not fit scrolls inside. */
export function keepHeights(page, boxes) {
  const kept = pointsAt(page);
  for (const box of boxes) {
    if (!kept) box.style.height = "";
    else if (!box.style.height) box.style.height = `${box.getBoundingClientRect().height}px`;
  }
}

/** After an action of a person: what it shows takes the height that it needs. */
export function releaseHeights(boxes) {
  for (const box of boxes) box.style.height = "";
}
