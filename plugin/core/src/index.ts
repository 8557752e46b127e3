export * from "./assign.js";
