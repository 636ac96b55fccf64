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

const order = [0, 1, 0, 2, 0, 1, 0, 2, 0, 1];
const burners = [burnFifty, burnThirty, burnTwenty];
let turn = 0;
let sink = 0;

function compareAndBurn(left, right) {
  sink = (sink + burners[order[turn++ % 10]](2)) | 0;
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
