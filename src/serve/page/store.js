// What this browser keeps: takes in its database (in memory where it has none), and small settings.

/** What a list of takes needs of each, and the samples, which are read when they are played. */
const TAKES = "takes";
const SOUNDS = "sounds";
const memory = new Map();
let durable = true;
let nextId = 1;

function open() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("rumik", 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(TAKES, { keyPath: "id", autoIncrement: true });
      opening.result.createObjectStore(SOUNDS);
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

/** Runs `act` in one transaction over both stores; `otherwise` where there is no database. */
async function run(act, otherwise) {
  try {
    if (!durable) return otherwise();
    const database = await open();
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction([TAKES, SOUNDS], "readwrite");
      const asked = act(transaction.objectStore(TAKES), transaction.objectStore(SOUNDS));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    }).finally(() => database.close());
  } catch (error) {
    console.warn("takes are not kept beyond this page:", error);
    durable = false;
    return otherwise();
  }
}

/** Adds a take and hands out its id. */
export const add = (take, samples) =>
  run(
    (takes, sounds) => {
      const adding = takes.add(take);
      adding.onsuccess = () => sounds.add(samples, adding.result);
      return adding;
    },
    () => {
      const id = -nextId++; // never that of a take that the database has
      memory.set(id, { take: { ...take, id }, samples });
      return id;
    },
  );

/** All takes, the oldest first. */
export const all = () => run((takes) => takes.getAll(), () => [...memory.values()].map(({ take }) => take));

/** The samples of a take. */
export const samples = async (id) =>
  memory.get(id)?.samples ?? run((_, sounds) => sounds.get(id), () => undefined);

export const remove = (id) =>
  run(
    (takes, sounds) => {
      takes.delete(id);
      return sounds.delete(id);
    },
    () => memory.delete(id),
  );

export const clear = () =>
  run(
    (takes, sounds) => {
      takes.clear();
      return sounds.clear();
    },
    () => memory.clear(),
  );

/** Reads a small setting of `storage`, `localStorage` or `sessionStorage`; some browsers forbid both. */
export function recall(storage, name) {
  try {
    return JSON.parse(window[storage].getItem(name));
  } catch {
    return null;
  }
}

export function remember(storage, name, value) {
  try {
    window[storage].setItem(name, JSON.stringify(value));
  } catch {
    // Then it is not remembered.
  }
}
