// Read from the API and keep what was read: while the store is away, the old figures stay and say
// since when.
import { ApiError, askJson } from "./api.js";
import { useCallback, useEffect, useRef, useState } from "./view.js";

const EMPTY = { data: null, error: null, at: null };

// Ask once for each `path` and `query`, again after `reload()`, whenever `tick` is another one, and
// every `interval_s` while the tab is seen. `path` null: ask nothing. The answer: {data, error, at,
// reload}; old data stay until new ones are there.
export function useAnswer(path, query = {}, { interval_s = null, tick = null } = {}) {
  const [state, setState] = useState(EMPTY);
  const place = path === null ? null : `${path} ${JSON.stringify(query)}`;
  const current = useRef(place);
  current.current = place;
  const load = useCallback(async () => {
    if (place === null) return;
    try {
      const data = await askJson("GET", path, { query });
      if (current.current === place) setState({ data, error: null, at: Date.now() / 1000, place });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (current.current === place) {
        setState((last) => (last.place === place ? { ...last, error } : { ...EMPTY, error, place }));
      }
    }
  }, [place]);
  useEffect(() => {
    load();
    if (interval_s === null) return undefined;
    const timer = setInterval(() => document.hidden || load(), interval_s * 1000);
    return () => clearInterval(timer);
  }, [load, interval_s, tick]);
  const isOfPlace = state.place === place;
  return { ...(isOfPlace ? state : EMPTY), reload: load };
}
