// Modules by their address, as those of add-ons. No part of what runs in workerd, whose tools look for each module beforehand.

export const importModule = (address) => import(/* @vite-ignore */ /* webpackIgnore: true */ address);
