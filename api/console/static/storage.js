// Texts that the browser keeps, for a tab or for all; no longer than the page if it is set to keep nothing of this site.

function kept(name) {
  try {
    return window[name];
  } catch {
    const texts = new Map();
    return { getItem: (key) => texts.get(key) ?? null, setItem: (key, text) => texts.set(key, text), removeItem: (key) => texts.delete(key) };
  }
}

export const ofTab = kept("sessionStorage");
export const ofBrowser = kept("localStorage");
