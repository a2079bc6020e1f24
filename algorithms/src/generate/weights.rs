//! A model's weights, rearranged once for products with few rows.

use std::ops::Range;

use odeon_gpu::{Backend, Layout};

use super::width::PackedWidth;

use crate::model::{
    LayerPlaces, Model, ModelConfig, NormPlaces, Places, TensorError, check_length,
};
use crate::weights::StoredType;

/// Weights ready to sample from.
#[derive(Debug)]
pub(super) struct PackedModel<B: Backend> {
    config: ModelConfig,
    layout: Layout,
    places: Places,
    /// Flat parameters: embedding rows, norms and biases are read from here.
    params: B::Buffer,
    layers: Vec<PackedLayer<B>>,
    width: Option<PackedWidth<B>>,
    pub(super) head: B::Packed,
}

/// The products of one layer.
#[derive(Debug)]
pub(super) struct PackedLayer<B: Backend> {
    pub(super) qkv: B::Packed,
    pub(super) out: B::Packed,
    /// Those of the feed-forward part.
    pub(super) block: Vec<B::Packed>,
}

impl<B: Backend> PackedModel<B> {
    pub(super) fn zeros(backend: &B, config: ModelConfig) -> Self {
        let (layout, places) = Model::<B>::describe(&config);
        let params = backend.alloc(layout.len());
        let (dim, attention) = (config.dim, config.attention());
        let matrices = config.block.matrices(config.widths());
        let pack = |outputs, inputs, place: &Range<usize>| {
            backend.pack(outputs, inputs, B::view(&params, place.clone()))
        };
        let layers = places
            .layers
            .iter()
            .map(|layer| PackedLayer {
                qkv: pack(attention.qkv_cols(), dim, &layer.qkv),
                out: pack(dim, attention.out_cols(), &layer.out),
                block: matrices
                    .iter()
                    .zip(&layer.block)
                    .map(|(matrix, place)| pack(matrix.outputs(), matrix.inputs, place))
                    .collect(),
            })
            .collect();
        let head = pack(config.vocab, dim, &places.head);
        let width = PackedWidth::new(&config, &places, pack);
        Self {
            config,
            layout,
            places,
            params,
            layers,
            width,
            head,
        }
    }

    pub(super) fn load(&mut self, backend: &B, flat: &[f32]) -> Result<(), TensorError> {
        let len = self.layout.len();
        check_length("the flat buffer", flat.len(), len)?;
        backend.write(B::view_mut(&mut self.params, 0..len), flat);
        self.repack(backend);
        Ok(())
    }

    /// The same from little-endian bytes, piece by piece: no copy of the whole is made on the way.
    pub(super) fn load_bytes(
        &mut self,
        backend: &B,
        bytes: &[u8],
        stored: StoredType,
    ) -> Result<(), TensorError> {
        let len = stored.bytes() * self.layout.len();
        check_length("the flat buffer's bytes", bytes.len(), len)?;
        let mut numbers = Vec::with_capacity(PIECE);
        let mut start = 0;
        for piece in bytes.chunks(PIECE * stored.bytes()) {
            numbers.clear();
            stored.read(piece, &mut numbers);
            let end = start + numbers.len();
            backend.write(B::view_mut(&mut self.params, start..end), &numbers);
            start = end;
        }
        self.repack(backend);
        Ok(())
    }

    fn repack(&mut self, backend: &B) {
        let Self {
            places,
            params,
            layers,
            width,
            head,
            ..
        } = self;
        let repack = |place: &Range<usize>, packed: &mut B::Packed| {
            backend.repack(B::view(params, place.clone()), packed);
        };
        for (place, layer) in places.layers.iter().zip(layers) {
            repack(&place.qkv, &mut layer.qkv);
            repack(&place.out, &mut layer.out);
            let block = place.block.iter().zip(&mut layer.block);
            block.for_each(|(place, packed)| repack(place, packed));
        }
        let width = width.iter_mut().flat_map(|it| it.placed(places));
        width.for_each(|(place, packed)| repack(place, packed));
        repack(&places.head, head);
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Products of connections, where rows are wider than layers.
    pub(super) fn width(&self) -> Option<&PackedWidth<B>> {
        self.width.as_ref()
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Places and packed products of the layers.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&LayerPlaces, &PackedLayer<B>)> {
        self.places.layers.iter().zip(&self.layers)
    }

    /// Norms rows. What it keeps of each row for a backward pass goes to `moments`, which has room for
    /// two numbers a row.
    pub(super) fn norm(
        &self,
        backend: &B,
        place: &NormPlaces,
        x: B::View<'_>,
        y: B::ViewMut<'_>,
        moments: (&mut B::Buffer, usize),
    ) {
        let (eps, weight) = (self.config.norm_eps, self.param(&place.weight));
        let (moments, rows) = moments;
        match &place.bias {
            None => backend.rms_norm(eps, x, weight, y, B::view_mut(moments, 0..rows)),
            Some(bias) => {
                let moments = B::view_mut(moments, 0..2 * rows);
                backend.layer_norm(eps, x, weight, self.param(bias), y, moments);
            }
        }
    }

    pub(super) fn params(&self, places: &[Range<usize>]) -> Vec<B::View<'_>> {
        places.iter().map(|place| self.param(place)).collect()
    }

    pub(super) fn param(&self, place: &Range<usize>) -> B::View<'_> {
        B::view(&self.params, place.clone())
    }
}

/// Numbers decoded at a time: 256 KiB, which stay in the cache.
const PIECE: usize = 64 << 10;
