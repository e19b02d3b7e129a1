"use strict";
// What the role of a head is about, where the words tell: the rows at which it shows best.
const headRoles = (() => {
  const { told, share, strongest } = headMaps;
  // Early tokens see too little to tell.
  const EARLY = 16, FAINT = 0.05, MOST = 12;
  const pronoun = /^\s*(he|she|it|they|him|her|them|his|its|their)\s*$/i, stop = /^[\s\p{P}]+$/u;
  const texts = (stage) => ({ queries: told.texts[stage.queries], keys: told.texts[stage.keys], same: stage.queries === stage.keys });

  // Whether a key is the query's own token once more, and whether it stands behind such a one.
  const again = ({ queries, keys, same }, query, key) => keys[key] === queries[query] && !(same && key === query);
  const behindAgain = (own, query, key) => key > 0 && again(own, query, key - 1);
  // Whether a key is one that a head of this role should look at.
  const suits = {
    "previous token": (_, query, key) => key === query - 1,
    "next token": (_, query, key) => key === query + 1,
    "itself": (_, query, key) => key === query,
    "induction": behindAgain,
    "duplicate token": again,
    "coreference": ({ queries }, query, key) => key !== query && pronoun.test(queries[query]),
    "delimiter": ({ keys }, _, key) => stop.test(keys[key]),
  };

  // The rows of a map, those first at which the role shows best: by weight on keys that suit it, else on any one.
  function clearest(map, role) {
    const { rows } = map.stage, own = texts(map.stage), suiting = suits[role];
    const late = [...rows.keys()].filter((r) => rows[r] >= EARLY), all = late.length ? late : [...rows.keys()];
    const sum = (r) => strongest(map, r).reduce((found, [key, weight]) => found + (suiting(own, rows[r], key) ? weight : 0), 0);
    const sorted = (value) => {
      const values = new Map(all.map((r) => [r, value(r)]));
      return { most: Math.max(...values.values()), rows: all.sort((a, b) => values.get(b) - values.get(a)).slice(0, MOST) };
    };
    const found = suiting && sorted(sum);
    return found && found.most > FAINT ? found.rows : sorted((r) => share(map.weights[r * map.stage.strongest])).rows;
  }

  return { clearest, again: (stage, query, key) => again(texts(stage), query, key), behindAgain: (stage, query, key) => behindAgain(texts(stage), query, key) };
})();
