//! Writes results of simulations as Parquet, a row per seed, for SQL and data frames.
//!
//! There is one row group with ten columns, without compression; text is dictionary-encoded, which saves most of what
//! compression would. A value that is the same for all seeds of a row is repeated for each of them. The rows of a load
//! are named by policy and metric. The seed of a number is its position plus the first seed: an interrupted run has the
//! numbers of the first seeds. A number that does not depend on the seed is written once, with the first seed.
//!
//! 126 rows take 4 KiB. `select row, median(value) from 'sim.parquet' group by row` gives the simulated numbers of the
//! printed table.
//!
//! Source: the Parquet format, `LogicalTypes.md`: text is UTF-8 in byte arrays.

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;
use warmcore_papers::{Mark, Row, Table};
use warmcore_report::{Simulated, SimulatedLoad};
use warmcore_sim::simulation::Report;

const SCHEMA: &str = "message simulated {
    REQUIRED BYTE_ARRAY table (UTF8);
    REQUIRED BYTE_ARRAY row (UTF8);
    REQUIRED BYTE_ARRAY machine (UTF8);
    REQUIRED INT64 seed;
    REQUIRED DOUBLE value;
    REQUIRED BYTE_ARRAY unit (UTF8);
    OPTIONAL DOUBLE published;
    OPTIONAL BYTE_ARRAY tolerance (UTF8);
    REQUIRED BYTE_ARRAY mark (UTF8);
    OPTIONAL BOOLEAN met;
}";

/// A row of the file: the number of one seed in one row of a table or load.
struct Line<'a> {
    table: &'a str,
    row: &'a str,
    machine: &'a str,
    seed: u64,
    value: f64,
    unit: &'a str,
    published: Option<f64>,
    tolerance: Option<&'a str>,
    mark: &'a str,
    met: Option<bool>,
}

/// Encodes the tables and loads as a file. `first` is the first seed.
pub(super) fn bytes(all: &Simulated<Row>, first: u64) -> anyhow::Result<Vec<u8>> {
    let named: Vec<(String, &SimulatedLoad, Metric)> = all
        .loads
        .iter()
        .flat_map(|load| METRICS.iter().map(move |m| (format!("{}, {}", load.policy, m.name), load, *m)))
        .collect();
    let mut lines: Vec<Line<'_>> = Vec::new();
    for table in &all.tables {
        lines.extend(table.rows.iter().flat_map(|row| of_row(table, row, first)));
    }
    for (row, load, metric) in &named {
        lines.extend((first..).zip(&load.reports).map(|(seed, report)| Line {
            table: "load",
            row,
            machine: &load.machine,
            seed,
            value: (metric.of)(report),
            unit: metric.unit,
            published: None,
            tolerance: None,
            mark: Mark::New.name(),
            met: None,
        }));
    }
    write(&lines)
}

fn of_row<'a>(table: &'a Table, row: &'a Row, first: u64) -> impl Iterator<Item = Line<'a>> {
    (first..).zip(&row.numbers).map(move |(seed, value)| Line {
        table: &table.name,
        row: &row.name,
        machine: &table.machine,
        seed,
        value: *value,
        unit: row.unit,
        published: row.published,
        tolerance: row.tolerance.as_ref().map(|tolerance| tolerance.id.as_str()),
        mark: row.mark().name(),
        met: row.is_met(),
    })
}

/// A number of a load's report.
#[derive(Clone, Copy)]
struct Metric {
    name: &'static str,
    unit: &'static str,
    of: fn(&Report) -> f64,
}

const METRICS: &[Metric] = &[
    Metric { name: "wakes", unit: "wakes", of: |report| report.total().wakes as f64 },
    Metric { name: "switches", unit: "switches", of: |report| report.total().switches as f64 },
    Metric { name: "moves", unit: "moves", of: |report| report.total().moves() as f64 },
    Metric { name: "tasks ran", unit: "ns", of: |report| report.total().run_ns as f64 },
    Metric { name: "waited", unit: "ns", of: |report| report.total().wait_ns as f64 },
    Metric { name: "waited at most", unit: "ns", of: |report| report.total().wait_ns_max as f64 },
    Metric { name: "busy", unit: "per mille", of: |report| report.busy_per_mille() as f64 },
];

fn write(lines: &[Line<'_>]) -> anyhow::Result<Vec<u8>> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut bytes = Vec::new();
    let mut file =
        SerializedFileWriter::new(&mut bytes, schema, Arc::new(WriterProperties::builder().build()))?;
    let mut group = file.next_row_group()?;
    let text = |of: fn(&Line<'_>) -> String| {
        lines.iter().map(|line| Some(ByteArray::from(of(line).into_bytes()))).collect()
    };
    column::<ByteArrayType>(&mut group, text(|line| line.table.to_owned()), true)?;
    column::<ByteArrayType>(&mut group, text(|line| line.row.to_owned()), true)?;
    column::<ByteArrayType>(&mut group, text(|line| line.machine.to_owned()), true)?;
    column::<Int64Type>(&mut group, lines.iter().map(|line| Some(line.seed as i64)).collect(), true)?;
    column::<DoubleType>(&mut group, lines.iter().map(|line| Some(line.value)).collect(), true)?;
    column::<ByteArrayType>(&mut group, text(|line| line.unit.to_owned()), true)?;
    column::<DoubleType>(&mut group, lines.iter().map(|line| line.published).collect(), false)?;
    let tolerances = lines.iter().map(|line| Some(ByteArray::from(line.tolerance?.as_bytes().to_vec())));
    column::<ByteArrayType>(&mut group, tolerances.collect(), false)?;
    column::<ByteArrayType>(&mut group, text(|line| line.mark.to_owned()), true)?;
    column::<BoolType>(&mut group, lines.iter().map(|line| line.met).collect(), false)?;
    group.close()?;
    file.close()?;
    Ok(bytes)
}

/// Writes the values of the next column of the schema.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    values: Vec<Option<T::T>>,
    is_required: bool,
) -> anyhow::Result<()> {
    let Some(mut writer) = group.next_column()? else { anyhow::bail!("the schema has fewer columns") };
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.into_iter().flatten().collect();
    writer.typed::<T>().write_batch(&present, Some(&levels).filter(|_| !is_required).map(|l| &**l), None)?;
    Ok(writer.close()?)
}

#[cfg(test)]
mod tests {
    use super::super::begun;
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use warmcore_papers::{Options, drain};

    #[test]
    fn every_seed_of_every_row_is_read_back_as_it_was() {
        let options = Options { seeds: 7..9, quick: true, ..Options::default() };
        let mut all = begun("drain", "warmcore sim drain".to_owned());
        all.tables.push(drain::table(&options).concluded(&options));
        let file = SerializedFileReader::new(::bytes::Bytes::from(bytes(&all, 7).unwrap())).unwrap();
        let rows: Vec<_> = file.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        let table = &all.tables[0];
        let expected: Vec<_> = table.rows.iter().flat_map(|row| of_row(table, row, 7)).collect();
        assert_eq!(rows.len(), expected.len());
        for (row, line) in rows.iter().zip(&expected) {
            assert_eq!(
                (row.get_string(0).unwrap().as_str(), row.get_string(1).unwrap().as_str()),
                (line.table, line.row)
            );
            assert_eq!(
                (row.get_string(2).unwrap().as_str(), row.get_long(3).unwrap()),
                (line.machine, line.seed as i64)
            );
            assert_eq!(
                (row.get_double(4).unwrap(), row.get_string(5).unwrap().as_str()),
                (line.value, line.unit)
            );
            // Reading a missing value returns an error.
            assert_eq!(row.get_double(6).ok(), line.published);
            assert_eq!(row.get_string(7).ok().map(String::as_str), line.tolerance);
            assert_eq!((row.get_string(8).unwrap().as_str(), row.get_bool(9).ok()), (line.mark, line.met));
        }
        assert!(
            expected.iter().any(|line| line.met == Some(true))
                && expected.iter().any(|line| line.met.is_none())
        );
        assert!(expected.iter().any(|line| line.seed == 8));
    }

    #[test]
    fn nothing_yet_is_a_file_too() {
        let all = begun("cid", String::new());
        let file = SerializedFileReader::new(::bytes::Bytes::from(bytes(&all, 0).unwrap())).unwrap();
        assert_eq!(file.metadata().file_metadata().num_rows(), 0);
    }
}
