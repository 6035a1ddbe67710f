// The words of a sequence. Each shows whether the answers due there are right.

import { el } from "./dom.js";

export class TokenStrip {
  /** `traces` are those of all runs that are shown; `go` is called with the token of a click. */
  constructor(trace, traces, go) {
    this.words = trace.words;
    this.at = null;
    this.outcomes = this.words.map((_, place) => {
      const answers = traces.map((each) => each?.answers[place]).filter(Boolean);
      if (!answers.length) return "";
      return answers.every((answer) => answer.right) ? "right" : "wrong";
    });
    this.tokens = this.words.map((word, place) => {
      const name = `token ${this.outcomes[place]}`.trim();
      return el("span", { class: name, role: "option", id: `token-${place}`, "data-at": place }, word);
    });
    this.element = el(
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
    this.element.setAttribute("aria-activedescendant", token.id);
    this.keepVisible(token);
    this.at = at;
  }

  /** Scroll the strip alone, never the page. */
  keepVisible(token) {
    const box = this.element;
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
      if (this.outcomes[place] === "wrong") return place;
    }
    return at;
  }
}
