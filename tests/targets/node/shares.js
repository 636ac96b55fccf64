// The 50/30/20 shares in JavaScript. usage: shares.js [seconds]
"use strict";

function burnFifty(units) {
  let x = units | 1;
  for (let i = 0; i < units * 4000; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  return x;
}
function burnThirty(units) {
  let x = units | 3;
  for (let i = 0; i < units * 4000; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  return x;
}
function burnTwenty(units) {
  let x = units | 5;
  for (let i = 0; i < units * 4000; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  return x;
}

// Drawn from: a fixed order of turns may be in step with a sampler.
const order = [0, 0, 0, 0, 0, 1, 1, 1, 2, 2];
const burners = [burnFifty, burnThirty, burnTwenty];
let random = 42;
let sink = 0;

function compareAndBurn(left, right) {
  random ^= random << 13;
  random ^= random >>> 17;
  random ^= random << 5;
  sink = (sink + burners[order[(random >>> 0) % 10]](2)) | 0;
  return left - right;
}

function descend(depth) {
  if (depth === 0) {
    const numbers = Array.from({ length: 64 }, (_, i) => (i * 37) % 64);
    numbers.sort(compareAndBurn);
    return numbers[0];
  }
  return descend(depth - 1) + 1;
}

const seconds = Number(process.argv[2] ?? 60);
const end = Date.now() + seconds * 1000;
while (Date.now() < end) sink += descend(7);
const used = process.cpuUsage();
console.log(`cpu name=node pid=${process.pid} seconds=${((used.user + used.system) / 1e6).toFixed(6)}`);
