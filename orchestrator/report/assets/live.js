// A page that is served reloads itself when the sweep has new trials; one that was opened from a file asks for nothing.
import { DATA } from "./data.js";
import { byId } from "./dom.js";

const POLL_MS = 3000,
  QUIET_MS = 2000; // since the reader did anything
export const isLive = Boolean(DATA.version) && window.location.protocol.startsWith("http");

export function followSweep() {
  if (!isLive) return;
  const { scroll, focus } = window.history.state ?? {};
  if (scroll) window.scrollTo({ top: scroll, behavior: "instant" });
  if (focus) byId(focus)?.focus({ preventScroll: true });
  let touched = 0;
  for (const name of ["pointerdown", "pointermove", "keydown", "wheel"])
    document.addEventListener(name, () => (touched = Date.now()), { passive: true });
  window.setInterval(async () => {
    if (document.hidden || Date.now() - touched < QUIET_MS) return;
    const answer = await fetch("version", { cache: "no-store" }).catch(() => null), // the server may have ended
      found = answer?.ok ? await answer.json() : null;
    if (!found || found.version === DATA.version || Date.now() - touched < QUIET_MS) return;
    window.history.replaceState({ scroll: window.scrollY, focus: document.activeElement.id }, "");
    window.location.reload();
  }, POLL_MS);
}
