//! Rows of the residual stream that are wider than layers, in generation.

use std::ops::Range;

use odeon_gpu::{Backend, Store};

use super::weights::PackedModel;
use crate::model::{
    Coefficients, ConnectionPlaces, LayerPlaces, Mixing, ModelConfig, VirtualWidth,
};

/// The products of connections, and of what is before and behind all layers.
#[derive(Debug)]
pub(super) struct PackedWidth<B: Backend> {
    /// Those of attention and of the feed-forward part of each layer, where there are addends for tokens.
    connections: Vec<[Option<B::Packed>; 2]>,
    expand: Option<B::Packed>,
    reduce: Option<B::Packed>,
}

/// A matrix, and where it lies.
type Placed<'a, B> = (&'a Range<usize>, &'a mut <B as Backend>::Packed);

impl<B: Backend> PackedWidth<B> {
    /// Those of a model; `pack` takes outputs, inputs and a place.
    pub(super) fn new(
        config: &ModelConfig,
        places: &crate::model::Places,
        pack: impl Fn(usize, usize, &Range<usize>) -> B::Packed,
    ) -> Option<Self> {
        let width = config.width?;
        let (dim, row) = (config.dim, config.row());
        let connection = |places: &ConnectionPlaces| {
            let dynamic = places.dynamic.as_ref();
            dynamic.map(|[_, weight, _]| pack(width.columns(), width.segment(dim), weight))
        };
        let of_layer = |layer: &LayerPlaces| {
            let both = layer.connections.as_ref();
            both.map(|both| both.each_ref().map(connection))
        };
        Some(Self {
            connections: places.layers.iter().filter_map(of_layer).collect(),
            expand: places
                .width
                .expand
                .as_ref()
                .map(|place| pack(row, dim, place)),
            reduce: places
                .width
                .reduce
                .as_ref()
                .map(|place| pack(dim, row, place)),
        })
    }

    /// All of its matrices.
    pub(super) fn placed<'a>(
        &'a mut self,
        places: &'a crate::model::Places,
    ) -> impl Iterator<Item = Placed<'a, B>> {
        let both = places
            .layers
            .iter()
            .flat_map(|it| &it.connections)
            .flatten();
        let weights = both.map(|it| it.dynamic.as_ref().map(|[_, weight, _]| weight));
        let own = self.connections.iter_mut().flatten();
        let of_layers = weights
            .zip(own)
            .filter_map(|(place, own)| place.zip(own.as_mut()));
        let ends = [
            (&places.width.expand, &mut self.expand),
            (&places.width.reduce, &mut self.reduce),
        ];
        let ends = ends.into_iter();
        of_layers.chain(ends.filter_map(|(place, own)| place.as_ref().zip(own.as_mut())))
    }
}

/// The stream of the rows of a step.
#[derive(Debug)]
pub(super) struct WideRows<B: Backend> {
    width: VirtualWidth,
    mixing: Mixing,
    /// Rows, on the host, where connections mix them.
    stream: Vec<f32>,
    /// The same on the device, and normed.
    wide: B::Buffer,
    normed: B::Buffer,
    moments: B::Buffer,
    products: B::Buffer,
}

/// The matrix of a connection, by the rows that it mixes.
pub(super) struct Connection {
    fixed: Vec<f32>,
    /// The scale, and the products of tokens.
    dynamic: Option<[Vec<f32>; 2]>,
}

impl Connection {
    fn coefficients(&self) -> Coefficients<'_> {
        let dynamic = self.dynamic.as_ref();
        Coefficients {
            fixed: &self.fixed,
            dynamic: dynamic.map(|[scale, products]| [scale.as_slice(), products]),
        }
    }
}

fn on_host<B: Backend>(backend: &B, view: B::View<'_>, len: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; len];
    backend.read(view, &mut numbers);
    numbers
}

impl<B: Backend> WideRows<B> {
    /// Room for so many rows, where the model has such.
    pub(super) fn new(backend: &B, config: &ModelConfig, rows: usize) -> Option<Self> {
        let width = config.width?;
        let (row, groups) = (config.row(), width.groups().unwrap_or(0));
        Some(Self {
            width,
            mixing: Mixing::of(width, config.dim),
            stream: vec![],
            wide: backend.alloc(rows * row),
            normed: backend.alloc(rows * row),
            moments: backend.alloc(rows * width.segments.max(groups)),
            products: backend.alloc(rows * width.segments * width.columns()),
        })
    }

    /// Begins with the rows of tokens. `x` is as wide as a layer.
    pub(super) fn embed(
        &mut self,
        backend: &B,
        weights: &PackedModel<B>,
        tokens: &[u32],
        x: &mut B::Buffer,
    ) {
        let config = weights.config();
        let (row, columns) = (tokens.len() * config.row(), config.embedding_columns());
        let table = weights.param(&weights.places().embed);
        match weights.width().and_then(|it| it.expand.as_ref()) {
            None => backend.gather(columns, tokens, table, B::view_mut(&mut self.wide, 0..row)),
            Some(expand) => {
                let narrow = 0..tokens.len() * columns;
                backend.gather(columns, tokens, table, B::view_mut(x, narrow.clone()));
                let wide = B::view_mut(&mut self.wide, 0..row);
                backend.packed_linear(B::view(x, narrow), expand, wide, Store::Set);
            }
        }
        self.stream = on_host(backend, B::view(&self.wide, 0..row), row);
    }

    /// Reads what attention or the feed-forward part of a layer reads into `x`.
    pub(super) fn read(
        &mut self,
        backend: &B,
        weights: &PackedModel<B>,
        (layer, part): (usize, usize),
        x: &mut B::Buffer,
    ) -> Connection {
        let places = weights.places().layers[layer].connections.as_ref();
        let places = &places.expect("a layer has connections")[part];
        let matrix = self.width.segments * self.width.columns();
        let row = self.mixing.stream_row();
        let (len, segments) = (
            self.stream.len(),
            self.stream.len() / row * self.width.segments,
        );
        let dynamic = places.dynamic.as_ref().map(|[norm, _, scale]| {
            backend.write(B::view_mut(&mut self.wide, 0..len), &self.stream);
            backend.rms_norm(
                weights.config().norm_eps,
                B::view(&self.wide, 0..len),
                weights.param(norm),
                B::view_mut(&mut self.normed, 0..len),
                B::view_mut(&mut self.moments, 0..segments),
            );
            let packed = weights
                .width()
                .and_then(|it| it.connections[layer][part].as_ref());
            let all = 0..segments * self.width.columns();
            let products = B::view_mut(&mut self.products, all.clone());
            let packed = packed.expect("a connection has a product");
            backend.packed_linear(B::view(&self.normed, 0..len), packed, products, Store::Set);
            let mut products = on_host(backend, B::view(&self.products, all.clone()), all.end);
            let temperature = ((row / self.width.segments) as f32).sqrt();
            products.iter_mut().for_each(|it| *it *= 1.0 / temperature);
            [on_host(backend, weights.param(scale), matrix), products]
        });
        let connection = Connection {
            fixed: on_host(backend, weights.param(&places.fixed), matrix),
            dynamic,
        };
        let rows = self.mixing.read(connection.coefficients(), &self.stream);
        backend.write(B::view_mut(x, 0..rows.len()), &rows);
        connection
    }

    /// Goes on with what the layer has made in `x`.
    pub(super) fn write(&mut self, backend: &B, connection: &Connection, x: &B::Buffer) {
        let len = self.stream.len() / self.mixing.stream_row() * self.mixing.layer_row();
        let made = on_host(backend, B::view(x, 0..len), len);
        self.stream = self
            .mixing
            .write(connection.coefficients(), &self.stream, &made);
    }

    /// Makes rows as wide as a layer of them, in `x`.
    pub(super) fn narrow(&mut self, backend: &B, weights: &PackedModel<B>, x: &mut B::Buffer) {
        let (config, len) = (weights.config(), self.stream.len());
        let all = 0..len / config.row() * config.dim;
        backend.write(B::view_mut(&mut self.wide, 0..len), &self.stream);
        if let Some(norm) = &weights.places().width.norm {
            backend.rms_norm(
                config.norm_eps,
                B::view(&self.wide, 0..len),
                weights.param(norm),
                B::view_mut(&mut self.normed, 0..len),
                B::view_mut(&mut self.moments, 0..len / config.dim),
            );
            std::mem::swap(&mut self.wide, &mut self.normed);
        }
        let (wide, narrow) = (B::view(&self.wide, 0..len), B::view_mut(x, all));
        match weights.width().and_then(|it| it.reduce.as_ref()) {
            None => backend.copy(wide, narrow),
            Some(reduce) => backend.packed_linear(wide, reduce, narrow, Store::Set),
        }
    }
}
