//! The answers to questions about streams of replies.

use std::sync::Arc;

use super::protocol::{Batch, StreamEnd, StreamRequest, Streaming};
use super::shelf::Shelf;
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Serve};

impl Serve for Streaming {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: StreamRequest) {
        let (shelf, from) = (Arc::clone(engine.component::<Shelf>()), asked.from);
        match request {
            StreamRequest::Arrived(number) => shelf.arrived(number, from),
            StreamRequest::Drop(number) => shelf.drop_for(number, from),
            StreamRequest::Next(number) => {
                let Some(stream) = shelf.find(number, from) else {
                    let end = Some(StreamEnd::Unknown);
                    return asked.answer(
                        engine,
                        &Batch {
                            end,
                            ..Batch::default()
                        },
                    );
                };
                let answering = Arc::clone(engine);
                engine.spawn_task(async move {
                    let batch = stream.next(&answering.limits).await;
                    if batch.end.is_some() {
                        shelf.forget(number);
                    }
                    asked.answer(&answering, &batch);
                });
            }
        }
    }
}
