// The pages, by the first step of the address.
import { AuditPage } from "./audit.js";
import { LivePage } from "./live.js";
import { OverviewPage } from "./overview.js";
import { ResourcePage } from "./resource.js";
import { SearchPage } from "./search.js";
import { SettingsPage } from "./settings.js";
import { ThreadPage } from "./thread.js";
import { ThreadsPage } from "./threads.js";
import { TryPage } from "./try.js";

const PAGES = [
  { step: "overview", name: "Overview", view: OverviewPage },
  { step: "threads", name: "Threads", view: ThreadsPage },
  { step: "search", name: "Search", view: SearchPage },
  { step: "live", name: "Live", view: LivePage },
  { step: "try", name: "Try it", view: TryPage },
  { step: "audit", name: "Audit", view: AuditPage, isForAdmin: true },
  { step: "settings", name: "Settings", view: SettingsPage },
];
const UNLISTED = [
  { step: "thread", name: "Thread", view: ThreadPage, under: "threads" },
  { step: "resource", name: "Resource", view: ResourcePage, under: "threads" },
];

// The pages that a visitor finds in the list of pages.
export function listPages({ isAdmin }) {
  return PAGES.filter((page) => isAdmin || !page.isForAdmin);
}

export function findPage([step]) {
  return [...PAGES, ...UNLISTED].find((page) => page.step === step) ?? PAGES[0];
}
