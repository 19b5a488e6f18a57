import { Search } from "./search";

export default function Page() {
  return (
    <main>
      <h1>kiln-embed with Next.js</h1>
      <p>
        Put a model at <code>public/model.kiln</code> (<code>kiln export --output model.kiln</code>, or Kiln&apos;s own{" "}
        <code>web-demo/kiln-mini.kiln</code>).
      </p>
      <Search />
    </main>
  );
}
