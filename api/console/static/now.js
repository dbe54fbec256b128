// The service's time. Due times follow its clock, and the browser's clock may be wrong.

let aheadMs = 0; // service clock minus browser clock

/** Take the time that the service reported. */
export const hear = (nowMs) => (aheadMs = nowMs - Date.now());

/** Epoch milliseconds by the service's clock; by the browser's until the service has answered. */
export const now = () => Date.now() + aheadMs;
