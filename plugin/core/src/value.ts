/** Values of documents (nips/01-documents.md): an integer is a bigint, a number is a float, a map is a Map. */

export type Value = null | boolean | bigint | number | string | Uint8Array | readonly Value[] | ValueMap;
export type ValueMap = ReadonlyMap<string, Value>;

export const MAX_DEPTH = 32;

export function isMap(value: Value): value is ValueMap {
  return value instanceof Map;
}

export function isList(value: Value): value is readonly Value[] {
  return Array.isArray(value);
}
