//! Kiln's demo page. It says what it will be until the browser package is there.

use leptos::prelude::*;

fn main() {
    mount_to_body(|| {
        view! {
            <h1>"Kiln"</h1>
            <p>"Semantic search in the page. The demo comes with the browser package, kiln-embed."</p>
        }
    });
}
