// The nodes of a service with a journal or in shards: who leads what, and how far behind the standbys are, and
// which disks are full.

import { call } from "./api.js";
import { button, el, renew } from "./dom.js";
import { count } from "./format.js";
import { attempt, confirm, tell } from "./notices.js";
import { Poll } from "./poll.js";
import * as rights from "./rights.js";
import { problem, table } from "./table.js";

const NONE = "nobody"; // leads it at the moment
const LOOKS_MS = [100, 1_000]; // after a move, until every list knows of it

/** The rows of the table: a process of a shard each, or a node each where there are no shards. */
function rowsOf({ node, nodes, shards }) {
  if (!shards?.length) return nodes.map((one) => ({ ...one, shard: null, own: one.url === node }));
  return shards.flatMap(({ shard, leader, nodes: processes }) => [
    ...processes.map((one) => ({ ...one, shard, own: false })),
    ...(leader === null ? [{ shard, url: NONE, role: "no leader", behind: null, has_room: null, own: false }] : []),
  ]);
}

const ROOM = { true: "yes", false: "no", null: "" }; // unknown

const lag = ({ role, behind }) => (role === "standby" ? (behind === null ? "unknown" : count(behind)) : "");

/** One of the lists; it has a tab only if the service has more than one process, or may have. */
export class Cluster {
  name = "cluster";
  title = "Cluster";

  constructor() {
    this.found = null;
    this.place = el("div", {}, el("p", { class: "empty" }, "Loading"));
    this.note = el("p", { class: "quiet small", role: "status" });
    this.panel = el("div", { class: "stack" }, this.note, this.place);
    this.poll = new Poll((watch) => this.#load(watch), (error) => this.#fail(error));
    rights.changes.addEventListener("change", () => this.#draw());
  }

  arrive() {}

  show() {
    return this.poll.start();
  }

  hide() {
    this.poll.stop();
  }

  /** Whether there is anything to show. */
  async exists() {
    try {
      const { role, shards } = await call("GET", "/v1/cluster");
      return role !== "alone" || Boolean(shards?.length);
    } catch {
      return false;
    }
  }

  async #load(watch) {
    this.found = await call("GET", "/v1/cluster", undefined, {}, watch);
    this.#draw();
  }

  #fail(error) {
    this.found = null;
    this.note.textContent = "";
    renew(this.place, problem(error));
  }

  #draw() {
    if (this.found === null) return;
    const { node, role } = this.found;
    this.note.textContent = `This page is from ${node || "this node"}${role === "standby" ? ", a standby" : ""}.`;
    renew(this.place, table("Cluster", this.#columns(), rowsOf(this.found), "There is one node, without a journal."));
  }

  #columns() {
    const inShards = Boolean(this.found.shards?.length);
    const columns = [
      inShards && { head: "Shard", kind: "number", cell: ({ shard }) => count(shard) },
      { head: inShards ? "Process" : "Node", kind: "mono name", cell: ({ url, own }) => (own ? `${url} (this one)` : url) },
      { head: "Role", cell: ({ role }) => el("span", { class: role === "no leader" ? "bad" : "" }, role) },
      { head: "Behind", kind: "number", cell: (row) => lag(row) },
      this.found.role !== "alone" && {
        head: "Disk has room",
        cell: ({ has_room: room }) => el("span", { class: room === false ? "bad" : "" }, ROOM[room] ?? ""),
      },
      rights.may("admin") && this.found.role !== "alone" && { head: "", kind: "acts", cell: (row) => this.#mover(row) },
    ];
    return columns.filter(Boolean);
  }

  #mover({ shard, role, url }) {
    if (role !== "leader") return null;
    const what = shard === null ? "the lead" : `the lead of shard ${shard}`;
    return button("Move", () => this.#move(shard, what, url), { "aria-label": `Move ${what}`, "data-key": `move ${shard}` });
  }

  async #move(shard, what, url) {
    const words = `A standby takes over from ${url}. Calls pause for about a second.`;
    if (!(await confirm(`Move ${what}?`, words, "Move it"))) return;
    await attempt(async () => {
      const { leader } = await call("POST", `/v1/cluster/move${shard === null ? "" : `?shard=${shard}`}`);
      tell(`${leader} has ${what} now.`);
      for (const ms of LOOKS_MS) setTimeout(() => this.poll.renew(), ms);
    });
  }
}
