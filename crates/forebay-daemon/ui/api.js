// Requests to the daemon that this page came from, and to nobody else.

const TOKEN = "forebay-token";
/** A daemon that does not answer for so long is not connected. */
const WITHIN_MS = 8000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

function headers(more = {}) {
  const has = token.get();
  return has ? { Authorization: `Bearer ${has}`, ...more } : more;
}

/** The error of an answer, in the daemon's own words where it has any. */
async function refused(answer) {
  const problem = await answer.json().catch(() => null);
  const words = problem?.what ? [problem.what, problem.hint].filter(Boolean).join("; ") : answer.statusText;
  return new Refused(answer.status, words);
}

/** Asks for JSON. */
export async function get(path) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store", signal: AbortSignal.timeout(WITHIN_MS) });
  if (!answer.ok) throw await refused(answer);
  return answer.json();
}

/** Has something done. */
export async function call(method, path) {
  const answer = await fetch(path, { method, headers: headers(), signal: AbortSignal.timeout(60_000) });
  if (!answer.ok) throw await refused(answer);
}

/**
 * Follows a stream of server-sent events until it ends or is aborted; gives each event with its id to `take`. EventSource sends
 * no token, so the lines are read here (the text/event-stream format of the HTML standard, without \r alone as the end of one).
 */
export async function follow(path, lastId, signal, take) {
  const more = lastId ? { "Last-Event-ID": lastId } : {};
  const answer = await fetch(path, { headers: headers({ Accept: "text/event-stream", ...more }), cache: "no-store", signal });
  if (!answer.ok) throw await refused(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = {};
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((text) => text.replace(/\r$/, ""))) {
      if (line === "") {
        if (event.id || event.data) take(event);
        event = {};
        continue;
      }
      const [, name, text] = /^([^:]*):? ?(.*)$/.exec(line);
      if (name === "data" && event.data !== undefined) event.data += `\n${text}`;
      else if (name) event[name] = text;
    }
  }
}
