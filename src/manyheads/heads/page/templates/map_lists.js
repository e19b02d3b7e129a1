"use strict";
// The lists beside a map: a token, and those that it looks at or that look at it, each with the words around it.
const headLists = (() => {
  const at = (id) => document.getElementById(id), { made, percent, inLine, counted } = headMaps;
  const AROUND = 12;

  function place(query, key) {
    if (!headText.same()) return `token ${counted(key + 1)}`;
    const back = query - key;
    return back === 0 ? "itself" : back > 0 ? `${counted(back)} back` : `${counted(-back)} ahead`;
  }

  // A token with what stands around it, on one line: the words before end where it begins. Underlined: the word of the query.
  function inContext(texts, token, again, behind) {
    const before = made("span", "before"), after = made("span", "after"), word = inLine(texts[token]) || "·";
    const left = texts.slice(Math.max(token - AROUND, 0), token).map(inLine);
    if (behind) before.append(made("span", "", left.slice(0, -1).join("")), made("u", "", left[left.length - 1]));
    else before.append(made("span", "", left.join("")));
    const lead = /^\s*/.exec(word)[0], rest = word.slice(lead.length) || "␣";
    before.lastChild.append(lead);
    after.append(made("b", "", again ? made("u", "", rest) : rest));
    after.append(made("span", "", texts.slice(token + 1, token + 1 + AROUND).map(inLine).join("")));
    return [before, after];
  }

  // An entry: a token of a side with its weight, null for none, and `words` on where it is; `query`: the token that it is a key of.
  function line(stage, kind, side, token, weight, words, query = null) {
    const button = made("button", ""), texts = headText.textsOf(side);
    const amount = made("span", "share", weight === null ? "" : percent(weight), ...(weight === null ? [] : [made("i", "")]));
    const again = query !== null && headRoles.again(stage, query, token), behind = query !== null && headRoles.behindAgain(stage, query, token);
    button.type = "button";
    button.setAttribute("aria-label", `${weight === null ? "" : `${percent(weight)} `}“${inLine(texts[token]).trim()}”, ${words}: scroll the text to it`);
    button.append(amount, ...inContext(texts, token, again, behind), made("span", "place", words));
    button.addEventListener("click", () => headText.seek(side, token));
    const entry = made("li", kind, button);
    entry.style.setProperty("--weight", (weight || 0).toFixed(3));
    return entry;
  }

  // The keys of a row of a map, the first token apart; the rows of a map that look at a key.
  const keysOf = (map, row, query, strongest) => [
    line(map.stage, "first", "keys", 0, headMaps.share(map.first[row]), "the first", query),
    ...strongest.map(([key, weight]) => line(map.stage, "", "keys", key, weight, place(query, key), query))];
  const lookersOf = (map, key, found) => found.map(([r, weight]) => {
    const query = map.stage.rows[r];
    return line(map.stage, "", "queries", query, weight, place(query, key));
  });

  function headline(side, token, held, words) {
    const word = headText.textsOf(side)[token].replace(/\n/g, "⏎");
    at("heads-told").replaceChildren(
      made("span", "token", `“${word.trim() || word}”`), ` (token ${counted(token + 1)}${held ? ", held" : ""}) ${words}`);
  }

  function list(stage, side, token, entries) {
    const none = made("li", "none", "none of the tokens whose strongest keys are kept");
    at("heads-list").replaceChildren(line(stage, "query", side, token, null, "chosen"), ...(entries.length ? entries : [none]));
  }

  return { headline, list, keysOf, lookersOf };
})();
