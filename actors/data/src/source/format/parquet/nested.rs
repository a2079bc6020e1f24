//! Columns of lists and structures, as conversations have: each row of them as JSON.

use std::sync::Arc;

use odeon_algorithms::json::OrderedJson;
use parquet::{
    bloom_filter::Sbbf,
    column::page::PageReader,
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, RowGroupMetaData},
        reader::RowGroupReader,
        serialized_reader::SerializedPageReader,
    },
    record::{Field, Row, reader::RowIter},
    schema::types::{SchemaDescriptor, Type},
};

use super::{super::utf8, Chunks};

/// The columns of the fields of these names, with all that is below them.
pub(super) fn leaves(schema: &SchemaDescriptor, names: &[&str]) -> Vec<usize> {
    let columns = schema.columns().iter().enumerate();
    let own = columns.filter(|(_, column)| {
        let first = column.path().parts().first();
        first.is_some_and(|first| names.contains(&first.as_str()))
    });
    own.map(|(at, _)| at).collect()
}

/// The fields of a row, or what is wrong with it.
pub(super) type Fields = Result<Vec<OrderedJson>, String>;

/// So many rows of a row group from one on, each with its fields of these names in their order.
pub(super) fn rows(
    metadata: &ParquetMetaData,
    group: usize,
    chunks: &Arc<Chunks>,
    names: &[&str],
    (first, count): (usize, usize),
) -> Result<Vec<Fields>, ParquetError> {
    let schema = metadata.file_metadata().schema_descr();
    let root = schema.root_schema();
    let wanted = root.get_fields().iter();
    let wanted = wanted
        .filter(|field| names.contains(&field.name()))
        .cloned();
    let projection = Type::group_type_builder(root.name())
        .with_fields(wanted.collect())
        .build()?;
    let group = Group {
        metadata: metadata.row_group(group),
        chunks,
    };
    let rows = group.get_row_iter(Some(projection))?;
    let of = |row: Result<Row, ParquetError>| {
        let row = row?;
        let field = |name: &&str| {
            let mut columns = row.get_column_iter();
            let found = columns.find(|(own, _)| own == name);
            found.map_or(Ok(OrderedJson::Null), |(_, field)| json(field))
        };
        Ok(names.iter().map(field).collect())
    };
    rows.skip(first).take(count).map(of).collect()
}

/// A row group whose bytes are there as far as they are wanted.
struct Group<'a> {
    metadata: &'a RowGroupMetaData,
    chunks: &'a Arc<Chunks>,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, column: usize) -> Result<Box<dyn PageReader>, ParquetError> {
        Ok(Box::new(SerializedPageReader::new(
            Arc::clone(self.chunks),
            self.metadata.column(column),
            self.metadata.num_rows() as usize,
            None,
        )?))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>, ParquetError> {
        RowIter::from_row_group(projection, self)
    }
}

/// A value as JSON; what JSON has no kind for, such as a date, as its text.
fn json(field: &Field) -> Result<OrderedJson, String> {
    Ok(match field {
        Field::Null => OrderedJson::Null,
        Field::Bool(value) => OrderedJson::Bool(*value),
        Field::Byte(number) => OrderedJson::Number((*number).into()),
        Field::Short(number) => OrderedJson::Number((*number).into()),
        Field::Int(number) => OrderedJson::Number((*number).into()),
        Field::Long(number) => OrderedJson::Number((*number).into()),
        Field::UByte(number) => OrderedJson::Number((*number).into()),
        Field::UShort(number) => OrderedJson::Number((*number).into()),
        Field::UInt(number) => OrderedJson::Number((*number).into()),
        Field::ULong(number) => OrderedJson::Number((*number).into()),
        Field::Float(number) => float(f64::from(*number)),
        Field::Double(number) => float(*number),
        Field::Str(text) => OrderedJson::Text(text.clone()),
        Field::Bytes(bytes) => OrderedJson::Text(utf8(bytes.data())?.to_owned()),
        Field::Group(row) => {
            let fields = row.get_column_iter();
            let fields = fields.map(|(name, field)| Ok((name.clone(), json(field)?)));
            OrderedJson::Object(fields.collect::<Result<_, String>>()?)
        }
        Field::ListInternal(list) => {
            let items = list.elements().iter().map(json);
            OrderedJson::Array(items.collect::<Result<_, String>>()?)
        }
        Field::MapInternal(map) => {
            let entries = map.entries().iter();
            let entry = |(key, value): &(Field, Field)| match json(key)? {
                OrderedJson::Text(key) => Ok((key, json(value)?)),
                _ => Ok((key.to_string(), json(value)?)),
            };
            OrderedJson::Object(entries.map(entry).collect::<Result<_, String>>()?)
        }
        other => OrderedJson::Text(other.to_string()),
    })
}

fn float(number: f64) -> OrderedJson {
    serde_json::Number::from_f64(number).map_or(OrderedJson::Null, OrderedJson::Number)
}
