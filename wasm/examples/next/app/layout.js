export const metadata = { title: "kiln-embed with Next.js" };

export default function Layout({ children }) {
  return (
    <html lang="en">
      <body>{children}</body>
    </html>
  );
}
