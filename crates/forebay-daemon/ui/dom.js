// Elements. Names, messages and paths are foreign text: they become text nodes, and there is no other way here.

/** Makes an element: attributes (on* is a listener, true sets it bare, null leaves it out), then text or elements. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Sets text if it is another one. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Sets an attribute if it is another one; null takes it away. */
export function setAttribute(target, name, value) {
  if (value === null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}

/**
 * Children by key: `make(key)` makes one, `update(child, item)` brings it up to date. What stays is moved only if the order is
 * another one, so focus and selection stay too. With `still`, children keep their order, and none comes or goes.
 */
export class Keyed {
  constructor(parent, make, update) {
    Object.assign(this, { parent, make, update, children: new Map() });
  }

  show(items, keyOf, still = false) {
    if (still && this.children.size > 0) {
      for (const item of items) {
        const child = this.children.get(keyOf(item));
        if (child) this.update(child, item);
      }
      return;
    }
    const keys = new Set(items.map(keyOf));
    for (const [key, child] of this.children) {
      if (!keys.has(key)) {
        child.remove();
        this.children.delete(key);
      }
    }
    let at = this.parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      let child = this.children.get(key);
      if (!child) {
        child = this.make(item);
        this.children.set(key, child);
      }
      this.update(child, item);
      if (child === at) at = at.nextElementSibling;
      else this.parent.insertBefore(child, at);
    }
  }
}
