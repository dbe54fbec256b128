// The service's time. What is due is due by its clock, and the browser's may be wrong.

let aheadMs = 0; // of the browser's clock

/** The service said what time it is. */
export const hear = (nowMs) => (aheadMs = nowMs - Date.now());

/** Milliseconds since the epoch, by the service's clock once it was heard. */
export const now = () => Date.now() + aheadMs;
