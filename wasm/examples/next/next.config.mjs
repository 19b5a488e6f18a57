// A page without a server of its own; kiln-embed needs no setting.
export default { output: "export" };
