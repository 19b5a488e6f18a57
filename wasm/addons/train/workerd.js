// In workerd modules have no addresses, and kiln-embed computes on the CPU and teaches nothing.

export default undefined;
