// What the page uses of the vendored module.
export type Signal<T> = { value: T; peek(): T; subscribe(f: (v: T) => void): () => void };
export const html: (strings: TemplateStringsArray, ...values: any[]) => any;
export const h: any;
export const Fragment: any;
export function render(node: any, parent: Element): void;
export function useState<T>(first: T | (() => T)): [T, (next: T | ((old: T) => T)) => void];
export function useEffect(f: () => void | (() => void), deps?: any[]): void;
export function useLayoutEffect(f: () => void | (() => void), deps?: any[]): void;
export function useRef<T = any>(first?: T): { current: T };
export function useMemo<T>(f: () => T, deps: any[]): T;
export function useCallback<T>(f: T, deps: any[]): T;
export function signal<T>(first: T): Signal<T>;
export function computed<T>(f: () => T): Signal<T>;
export function effect(f: () => void | (() => void)): () => void;
export function batch<T>(f: () => T): T;
export function untracked<T>(f: () => T): T;
