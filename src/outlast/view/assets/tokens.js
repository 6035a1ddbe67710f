// The words of a sequence. Each shows whether the answers due there are right: a line below it, or of two
// runs a line above and one below.

import { el } from "./dom.js";

export class TokenStrip {
  /** `runs` are those that are shown, each with its trace; `go` is called with the token of a click. */
  constructor(runs, go) {
    this.words = runs[0].trace.words;
    this.at = null;
    const sides = runs.length > 1 ? ["above", "below"] : ["below"];
    this.wrong = new Set(); // tokens where an answer of a run is wrong
    this.tokens = this.words.map((word, place) => {
      const names = ["token"];
      runs.forEach(({ trace }, index) => {
        const answer = trace.answers[place];
        if (!answer) return;
        if (!answer.right) this.wrong.add(place);
        names.push(`${sides[index]}-${answer.right ? "right" : "wrong"}`);
      });
      const about = { class: names.join(" "), role: "option", id: `token-${place}`, "data-at": place };
      return el("span", about, word);
    });
    this.strip = el(
      "div",
      {
        class: "tokens",
        id: "tokens",
        role: "listbox",
        tabindex: 0,
        "aria-label": "Tokens",
        click: (event) => {
          const token = event.target.closest(".token");
          if (token) go(Number(token.dataset.at));
        },
      },
      ...this.tokens,
    );
    const [one, two] = runs.map(({ run, seed }) => `${run.label}, seed ${seed}`);
    const lines = two ? `Line above a token: ${one}. Line below: ${two}.` : "Line below a token.";
    const words = `${lines} Solid: the answer is right. Dashed: it is wrong.`;
    this.element = el("div", {}, this.strip, el("p", { class: "note", id: "token-words" }, words));
  }

  /** Mark the current token; those after it are not read yet. */
  show(at) {
    const from = this.at ?? this.tokens.length;
    this.tokens[this.at]?.classList.remove("here");
    this.tokens[this.at]?.removeAttribute("aria-selected");
    for (let i = Math.min(from, at); i <= Math.max(from, at) && i < this.tokens.length; i++)
      this.tokens[i].classList.toggle("later", i > at);
    if (this.at === null)
      this.tokens.forEach((token, place) => token.classList.toggle("later", place > at));
    const token = this.tokens[at];
    token.classList.add("here");
    token.setAttribute("aria-selected", "true");
    this.strip.setAttribute("aria-activedescendant", token.id);
    this.keepVisible(token);
    this.at = at;
  }

  /** Scroll the strip alone, never the page. */
  keepVisible(token) {
    const box = this.strip;
    const top = token.offsetTop;
    if (top < box.scrollTop) box.scrollTop = top - 8;
    else if (top + token.offsetHeight > box.scrollTop + box.clientHeight)
      box.scrollTop = top + token.offsetHeight - box.clientHeight + 8;
  }

  /** The next token with a wrong answer, from the start again after the end. */
  nextMistake(at) {
    const count = this.words.length;
    for (let step = 1; step <= count; step++) {
      const place = (at + step) % count;
      if (this.wrong.has(place)) return place;
    }
    return at;
  }
}
