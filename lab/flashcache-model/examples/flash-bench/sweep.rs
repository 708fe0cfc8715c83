//! The cards by fill level, and the fit of the model to them.

use crate::figures::cards::{CARDS, Card, FILLS, Fit, PUBLISHED_MIB_S, Rest, Sweep, error, mib_per_s};
use crate::lines::{Cell, Table};
use forebay_models::flash::ftl::Collection;

/// Pages of a modelled card.
const PAGES: u32 = 65_536;
/// Spare areas to try, in thousandths.
const SPARES: [u32; 12] = [50, 70, 100, 130, 160, 200, 250, 280, 330, 370, 430, 500];

/// Returns a line for each card and fill level: the model and the published figures.
pub(crate) fn cards(pages: Option<u32>, seed: u64) -> Table {
    let mut table = Table::new("card");
    for (card, published) in CARDS.iter().zip(&PUBLISHED_MIB_S) {
        let sweep =
            Sweep { seed, ..Sweep::new(card.spare_permille, Collection::Greedy, pages.unwrap_or(PAGES)) };
        let did = sweep.all();
        let model = did.map(|stats| mib_per_s(card, &sweep, &stats));
        for (at, used_pct) in FILLS.iter().enumerate() {
            table.add(&[
                ("card", Cell::Text(card.name.into())),
                ("used_pct", Cell::Number(f64::from(*used_pct), 0)),
                ("model_mib_s", Cell::Number(model[at], 0)),
                ("published_mib_s", Cell::Number(published[at], 0)),
                ("model_of_emptiest", Cell::Number(model[at] / model[0], 3)),
                ("published_of_emptiest", Cell::Number(published[at] / published[0], 3)),
                ("write_amplification", Cell::Number(did[at].write_amplification(), 3)),
                ("rms_error_of_card", Cell::Number(error(&model, published), 4)),
            ]);
        }
    }
    table
}

/// Returns the results of the search: for each collection policy, the spare area that fits each
/// card best.
pub(crate) fn fits(pages: Option<u32>, seed: u64, all: bool) -> Table {
    let mut table = Table::new("fit");
    let ways = [
        (Collection::Greedy, Rest::Nothing),
        (Collection::Oldest, Rest::Nothing),
        (Collection::Any, Rest::Nothing),
        (Collection::Greedy, Rest::Stale),
    ];
    for (collection, rest) in ways {
        let sweeps =
            SPARES.map(|spare| Sweep { rest, seed, ..Sweep::new(spare, collection, pages.unwrap_or(PAGES)) });
        let did = sweeps.map(|sweep| (sweep, sweep.all()));
        for (card, published) in CARDS.iter().zip(&PUBLISHED_MIB_S) {
            for any_factor in [false, true] {
                let fit = |(sweep, did): &(Sweep, [_; FILLS.len()])| {
                    let best =
                        if any_factor { Fit::best } else { |a: &_, b: &_, c: &_| Fit::with(a, b, c, 1.0) };
                    (sweep.device.spare_permille, best(sweep, did, published))
                };
                let mut fits: Vec<_> = did.iter().map(fit).collect();
                fits.sort_by(|a, b| a.1.error.total_cmp(&b.1.error));
                let kept = if all { fits.len() } else { 1 };
                for (spare, fit) in &fits[..kept] {
                    table.add(&line(card, (collection, rest), any_factor, *spare, fit));
                }
            }
        }
    }
    table
}

fn line(
    card: &Card,
    (collection, rest): (Collection, Rest),
    any_factor: bool,
    spare_permille: u32,
    fit: &Fit,
) -> [(&'static str, Cell); 8] {
    [
        ("card", Cell::Text(card.name.into())),
        ("collection", Cell::Text(format!("{collection:?}").to_lowercase())),
        ("unused", Cell::Text(format!("{rest:?}").to_lowercase())),
        ("factor", Cell::Text(if any_factor { "fitted" } else { "1" }.into())),
        ("spare_pct", Cell::Number(f64::from(spare_permille) / 10.0, 1)),
        ("move_factor", Cell::Number(fit.move_factor, 1)),
        ("speed_mib_s", Cell::Number(fit.speed_mib_s, 0)),
        ("rms_error", Cell::Number(fit.error, 4)),
    ]
}
