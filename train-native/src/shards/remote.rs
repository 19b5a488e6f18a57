//! An object store behind an address; object_store's variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`,
//! `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_KEY` ..) say how it is reached.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, PutMode, PutPayload,
    RetryConfig, WriteMultipart,
};
use tokio::runtime::Runtime;

use super::entry::{Entry, Span, file_name};

/// Bytes that are written at a time, and held in memory; stores take 10,000 such parts. The variable names others.
const PART: usize = 16 << 20;
const PART_VARIABLE: &str = "KILN_UPLOAD_PART";
/// How often a request is sent again that a store does not answer, within a minute.
const RETRIES: usize = 5;
/// Parts on their way at once.
const AT_ONCE: usize = 4;

/// What an object store has behind a prefix.
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    address: String,
    root: Key,
    runtime: Runtime,
    part: usize,
}

impl Remote {
    pub(super) fn open(address: &str) -> Result<Self> {
        // The way of encrypting has to be chosen before the first client is built.
        let _ = crate::http::client();
        let address = address.trim_end_matches('/').to_string();
        let mut url =
            url::Url::parse(&address).with_context(|| format!("{address}: is no address"))?;
        // Of others a part before `@` is a name, such as that of a container.
        let names_someone = !url.username().is_empty() || url.password().is_some();
        if url.scheme().starts_with("http") && names_someone {
            // Neither fails where there is a host.
            let _ = url.set_username("").and_then(|()| url.set_password(None));
            bail!(
                "{url}: an http address takes no user and no password, which messages would show; copy the files \
                 here, or mount the server as a folder"
            );
        }
        let (store, root) = opened(&url).map_err(|error| said(&address, error))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start a thread for the object store")?;
        Ok(Self { store, address, root, runtime, part: part()? })
    }

    pub(super) fn label(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// The object of a name, letter by letter: what joins paths would write some letters otherwise.
    fn key(&self, name: &str) -> Result<Key> {
        let root = self.root.as_ref();
        let whole = if root.is_empty() { name.to_string() } else { format!("{root}/{name}") };
        Key::parse(whole).with_context(|| format!("{}: no store has such a name", self.label(name)))
    }

    pub(super) fn list(&self, span: Span<'_>) -> Result<Vec<Entry>> {
        let root = match span {
            Span::Below(name) => self.key(name)?,
            Span::Here | Span::All => self.root.clone(),
        };
        let root = (!root.as_ref().is_empty()).then_some(&root);
        let found = match span {
            Span::Here => {
                let listed = self.runtime.block_on(self.store.list_with_delimiter(root));
                listed.map(|listed| listed.objects)
            }
            _ => self.runtime.block_on(self.store.list(root).try_collect::<Vec<_>>()),
        };
        let found = found.map_err(|error| said(&self.address, error))?;
        // A key that ends in `/` is a folder to some, and has no name here.
        Ok(found.into_iter().filter_map(|object| self.entry_of(object)).collect())
    }

    pub(super) fn entry(&self, name: &str) -> Result<Option<Entry>> {
        match self.runtime.block_on(self.store.head(&self.key(name)?)) {
            Ok(object) => Ok(self.entry_of(object)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(said(&self.label(name), error)),
        }
    }

    fn entry_of(&self, object: object_store::ObjectMeta) -> Option<Entry> {
        let below = object.location.prefix_match(&self.root)?;
        let parts: Vec<String> = below.map(|part| part.as_ref().to_string()).collect();
        let version = object.e_tag.unwrap_or_else(|| object.last_modified.to_rfc3339());
        (!parts.is_empty()).then(|| Entry { name: parts.join("/"), bytes: object.size, version })
    }

    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let key = self.key(name)?;
        let read = async { self.store.get(&key).await?.bytes().await };
        match self.runtime.block_on(read) {
            Ok(bytes) => Ok(Some(bytes.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(said(&self.label(name), error)),
        }
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let payload = PutPayload::from(bytes.to_vec());
        let put = self.runtime.block_on(self.store.put(&self.key(name)?, payload));
        put.map(drop).map_err(|error| said(&self.label(name), error))
    }

    /// Writes an object where there is none. A store that cannot tell writes it in any case.
    pub(super) fn write_new(&self, name: &str, bytes: &[u8]) -> Result<()> {
        use object_store::Error::{AlreadyExists, NotImplemented, NotSupported, Precondition};
        let payload = PutPayload::from(bytes.to_vec());
        let key = self.key(name)?;
        let put = self.store.put_opts(&key, payload, PutMode::Create.into());
        match self.runtime.block_on(put) {
            Ok(_) | Err(AlreadyExists { .. } | Precondition { .. }) => Ok(()),
            Err(NotImplemented { .. } | NotSupported { .. }) => self.write(name, bytes),
            Err(error) => Err(said(&self.label(name), error)),
        }
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let key = self.key(name)?;
        let removed = self.runtime.block_on(self.store.delete(&key));
        removed.map_err(|error| said(&self.label(name), error))
    }

    /// Whether objects may be written in parts; a WebDAV server takes none.
    pub(super) fn takes_parts(&self) -> bool {
        !self.address.starts_with("http")
    }

    /// Copies an object into a file, piece by piece.
    pub(super) fn fetch(&self, name: &str, scratch: &Path) -> Result<PathBuf> {
        let path = scratch.join(file_name(name));
        let context = || path.display().to_string();
        let mut file = File::create(&path).with_context(context)?;
        let key = self.key(name)?;
        self.runtime.block_on(async {
            let broken = |error| said(&self.label(name), error);
            let mut pieces = self.store.get(&key).await.map_err(broken)?.into_stream();
            while let Some(piece) = pieces.try_next().await.map_err(broken)? {
                file.write_all(&piece).with_context(context)?;
            }
            anyhow::Ok(())
        })?;
        Ok(path)
    }

    /// Writes a file as an object, which is there when all of it is.
    pub(super) fn put(&self, name: &str, written: &Path) -> Result<()> {
        let context = || written.display().to_string();
        let mut file = File::open(written).with_context(context)?;
        let length = file.metadata().with_context(context)?.len();
        if length <= self.part as u64 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).with_context(context)?;
            return self.write(name, &bytes);
        }
        let (key, broken) = (self.key(name)?, |error| said(&self.label(name), error));
        self.runtime.block_on(async {
            let upload = self.store.put_multipart(&key).await.map_err(broken)?;
            let mut upload = WriteMultipart::new_with_chunk_size(upload, self.part);
            let mut part = vec![0; self.part];
            loop {
                let count = match file.read(&mut part) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(error) => {
                        // What was sent is thrown away; that this fails too is not the news.
                        let _ = upload.abort().await;
                        return Err(Error::from(error).context(context()));
                    }
                };
                if let Err(error) = upload.wait_for_capacity(AT_ONCE).await {
                    let _ = upload.abort().await;
                    return Err(broken(error));
                }
                upload.write(&part[..count]);
            }
            upload.finish().await.map(drop).map_err(broken)
        })
    }

    pub(super) fn is_inside(&self, other: &Self) -> bool {
        self.address == other.address || self.address.starts_with(&format!("{}/", other.address))
    }
}

/// Bytes of a part.
fn part() -> Result<usize> {
    let Ok(text) = std::env::var(PART_VARIABLE) else { return Ok(PART) };
    let bytes = text.trim().parse().ok().filter(|bytes| (1 << 10..=1 << 30).contains(bytes));
    bytes.with_context(|| {
        format!("{PART_VARIABLE} is {text:?}; name the bytes of a part, 1024 to {}", 1 << 30)
    })
}

/// The store of an address, as the environment says, and where it begins in it.
fn opened(url: &url::Url) -> object_store::Result<(Arc<dyn ObjectStore>, Key)> {
    let (scheme, root) = ObjectStoreScheme::parse(url)?;
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: Duration::from_secs(60),
        ..RetryConfig::default()
    };
    let (url, mut server) = (url.as_str(), url.clone());
    let store: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => {
            Arc::new(AmazonS3Builder::from_env().with_url(url).with_retry(retry).build()?)
        }
        ObjectStoreScheme::GoogleCloudStorage => {
            Arc::new(GoogleCloudStorageBuilder::from_env().with_url(url).with_retry(retry).build()?)
        }
        ObjectStoreScheme::MicrosoftAzure => {
            Arc::new(MicrosoftAzureBuilder::from_env().with_url(url).with_retry(retry).build()?)
        }
        ObjectStoreScheme::Http => {
            // What a server lists is named from its root, wherever the store begins.
            server.set_path("/");
            let options = ClientOptions::new().with_allow_http(true);
            let store = HttpBuilder::new().with_url(server).with_client_options(options);
            Arc::new(store.with_retry(retry).build()?)
        }
        _ => {
            return Err(object_store::Error::NotSupported {
                source: "s3, gs, az and http addresses are known".into(),
            });
        }
    };
    Ok((store, root))
}

/// The error of a store in one line, with the innermost cause, which is what tells.
fn said(place: &str, error: object_store::Error) -> Error {
    let mut innermost: &dyn std::error::Error = &error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    let (whole, cause) = (error.to_string(), innermost.to_string());
    match whole.contains(&cause) {
        true => Error::msg(format!("{place}: {whole}")),
        false => Error::msg(format!("{place}: {whole}: {cause}")),
    }
}
