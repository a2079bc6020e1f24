// What the page uses of the vendored module.
export const uPlot: any;
