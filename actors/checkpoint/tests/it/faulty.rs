//! A store that fails when it is told to.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// A kind of failure of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// From an operation on, nothing works any more: the process has crashed.
    Crash { at: usize, effect: Effect },
    /// Some operations fail, each the first time.
    Flaky,
    /// All operations fail, and say that it may pass.
    Busy,
    /// There is room for so many bytes.
    Full { bytes: usize },
    /// Nothing may be written.
    Denied,
}

/// Outcome of the operation during which it crashes: with effect, or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    No,
    Yes,
}

#[derive(Debug)]
pub(crate) struct Faulty {
    inner: Arc<dyn ObjectStore>,
    state: Arc<State>,
}

#[derive(Debug)]
pub(crate) struct State {
    trouble: Trouble,
    operations: AtomicUsize,
    written: AtomicUsize,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, trouble: Trouble) -> (Arc<Self>, Arc<State>) {
        let state = Arc::new(State {
            trouble,
            operations: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
        });
        let store = Arc::new(Self {
            inner,
            state: state.clone(),
        });
        (store, state)
    }
}

impl State {
    /// Number of operations so far.
    pub(crate) fn operations(&self) -> usize {
        self.operations.load(SeqCst)
    }

    /// Before an operation that writes `bytes`, or reads: an error where it has no effect, and
    /// whether it fails afterwards.
    fn begin(&self, path: &str, bytes: Option<usize>) -> Result<bool> {
        let number = self.operations.fetch_add(1, SeqCst);
        let io = |kind, text: &str| Error::Generic {
            store: "faulty",
            source: Box::new(std::io::Error::new(kind, text.to_owned())),
        };
        match self.trouble {
            Trouble::Crash { at, effect } if number >= at => {
                if number == at && effect == Effect::Yes {
                    return Ok(true);
                }
                Err(crashed(path))
            }
            Trouble::Flaky if !number.is_multiple_of(2) => Ok(false),
            Trouble::Flaky | Trouble::Busy => Err(Error::Generic {
                store: "faulty",
                source: "503 Slow Down".into(),
            }),
            Trouble::Full { bytes: room } if let Some(bytes) = bytes => {
                let before = self.written.fetch_add(bytes, SeqCst);
                if before + bytes > room {
                    return Err(io(
                        std::io::ErrorKind::StorageFull,
                        "no space left on device",
                    ));
                }
                Ok(false)
            }
            Trouble::Denied if bytes.is_some() => Err(Error::PermissionDenied {
                path: path.into(),
                source: "403".into(),
            }),
            _ => Ok(false),
        }
    }
}

/// Not one that is tried again.
fn crashed(path: &str) -> Error {
    Error::NotSupported {
        source: format!("{path}: the process has crashed").into(),
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl ObjectStore for Faulty {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Answer<'c, PutResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let fails = self
                .state
                .begin(location.as_ref(), Some(payload.content_length()))?;
            let result = self.inner.put_opts(location, payload, opts).await?;
            if fails {
                Err(crashed(location.as_ref()))
            } else {
                Ok(result)
            }
        })
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        opts: PutMultipartOptions,
    ) -> Answer<'c, Box<dyn MultipartUpload>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let fails = self.state.begin(location.as_ref(), Some(0))?;
            let inner = self.inner.put_multipart_opts(location, opts).await?;
            if fails {
                return Err(crashed(location.as_ref()));
            }
            Ok(Box::new(Upload {
                inner,
                path: location.to_string(),
                state: self.state.clone(),
            }) as Box<dyn MultipartUpload>)
        })
    }

    fn get_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        options: GetOptions,
    ) -> Answer<'c, GetResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            self.state.begin(location.as_ref(), None)?;
            self.inner.get_opts(location, options).await
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (inner, state) = (self.inner.clone(), self.state.clone());
        locations
            .then(move |location| {
                let (inner, state) = (inner.clone(), state.clone());
                async move {
                    let location = location?;
                    let fails = state.begin(location.as_ref(), Some(0))?;
                    let one = futures::stream::iter([Ok(location.clone())]).boxed();
                    for deleted in inner.delete_stream(one).collect::<Vec<_>>().await {
                        deleted?;
                    }
                    if fails {
                        Err(crashed(location.as_ref()))
                    } else {
                        Ok(location)
                    }
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.state.begin("list", None) {
            Ok(_) => self.inner.list(prefix),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    fn list_with_delimiter<'a, 'b, 'c>(&'a self, prefix: Option<&'b Path>) -> Answer<'c, ListResult>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            self.state.begin("list", None)?;
            self.inner.list_with_delimiter(prefix).await
        })
    }

    fn copy_opts<'a, 'b, 'd, 'c>(
        &'a self,
        from: &'b Path,
        to: &'d Path,
        options: CopyOptions,
    ) -> Answer<'c, ()>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        self.inner.copy_opts(from, to, options)
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} over {}", self.state.trouble, self.inner)
    }
}

#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    path: String,
    state: Arc<State>,
}

impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let begun = self.state.begin(&self.path, Some(data.content_length()));
        let part = self.inner.put_part(data);
        let path = self.path.clone();
        async move {
            let fails = begun?;
            part.await?;
            if fails { Err(crashed(&path)) } else { Ok(()) }
        }
        .boxed()
    }

    fn complete<'a, 'c>(&'a mut self) -> Answer<'c, PutResult>
    where
        'a: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let fails = self.state.begin(&self.path, Some(0))?;
            let result = self.inner.complete().await?;
            if fails {
                Err(crashed(&self.path))
            } else {
                Ok(result)
            }
        })
    }

    fn abort<'a, 'c>(&'a mut self) -> Answer<'c, ()>
    where
        'a: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            self.state.begin(&self.path, Some(0))?;
            self.inner.abort().await
        })
    }
}
