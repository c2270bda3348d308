use super::*;

fn purpose(group: &str, gid: u32) -> Purpose {
    Purpose { profile: Profile::Sigma, group: group.into(), gid, pids: 512, nofile: 4096 }
}

fn limits() -> Limits {
    Limits { pids: 512, memory: Some(64 << 20), cpu_shares: 1024 }
}

/// Makes what is needed, as a loop at rest does.
fn fill(parking: &mut Parking<u32>) -> usize {
    let mut created = 0;
    while parking.need().is_some() {
        let (purpose, _) = parking.neediest().unwrap();
        parking.put(&purpose, created as u32);
        created += 1;
    }
    created
}

#[test]
fn a_pool_grows_with_the_starts_that_find_none() {
    let mut parking = Parking::new();
    let be = purpose("default/be", 7);
    assert_eq!(fill(&mut parking), 0, "nothing before the first START");
    for want in [2, 4, 8, 16, 16] {
        while parking.take(&be, &limits(), 1).is_some() {}
        assert_eq!(parking.need(), Some(if want >= URGENT_PART { Need::Urgent } else { Need::AtRest }));
        assert_eq!(fill(&mut parking), want);
    }
    assert_eq!(parking.take(&be, &limits(), 1), Some(0), "the oldest first");
}

#[test]
fn pools_of_different_purposes_never_mix() {
    let mut parking = Parking::new();
    let others = [
        purpose("default/lc", 7),
        purpose("default/be", 8),
        Purpose { profile: Profile::Linux, ..purpose("default/be", 7) },
        Purpose { pids: 1, ..purpose("default/be", 7) },
        Purpose { nofile: 5000, ..purpose("default/be", 7) },
    ];
    parking.take(&purpose("default/be", 7), &limits(), 1);
    assert_eq!(fill(&mut parking), 2);
    for other in &others {
        assert_eq!(parking.take(other, &limits(), 1), None, "{other:?}");
    }
    assert_eq!(parking.take(&purpose("default/be", 7), &limits(), 1), Some(0));
}

#[test]
fn idle_pools_are_emptied() {
    let mut parking = Parking::new();
    let be = purpose("default/be", 7);
    for _ in 0..3 {
        while parking.take(&be, &limits(), SECOND).is_some() {}
        fill(&mut parking);
    }
    assert_eq!(parking.count, 8);
    assert_eq!(parking.next_tick(), 2 * SECOND);
    assert_eq!(parking.tick(2 * SECOND, || false), [0; 0], "9 starts in this second");
    assert_eq!(parking.tick(2 * SECOND + 1, || panic!("not so soon")), [0; 0]);
    assert_eq!(parking.tick(3 * SECOND, || false), [7, 6, 5, 4]);
    assert_eq!(parking.tick(4 * SECOND, || false), [3, 2]);
    for second in 5..=10 {
        assert_eq!(parking.tick(second * SECOND, || false), [0; 0], "two are kept");
    }
    assert_eq!(parking.tick(11 * SECOND, || false), [1, 0]);
    assert_eq!((parking.count, parking.is_empty(), parking.need()), (0, true, None));
}

#[test]
fn there_is_a_limit_for_all_and_none_without_memory() {
    let mut parking = Parking::new();
    for gid in 0..100 {
        parking.take(&purpose("a", gid), &limits(), 1);
    }
    assert_eq!(fill(&mut parking), PARKED_MAX);
    assert_eq!(parking.tick(2 * SECOND, || true).len(), PARKED_MAX);
    assert_eq!(parking.need(), None);
    parking.tick(3 * SECOND, || false);
    assert_eq!(parking.need(), Some(Need::AtRest));
}

#[test]
fn what_dies_unasked_is_not_made_again() {
    let mut parking = Parking::new();
    let be = purpose("default/be", 7);
    parking.take(&be, &limits(), 1);
    fill(&mut parking);
    assert_eq!(parking.lose(|parked| *parked == 1), Some(1));
    assert_eq!(parking.lose(|parked| *parked == 1), None);
    assert_eq!(parking.need(), None);
    assert_eq!(parking.take(&be, &limits(), 1), Some(0));
    assert_eq!(parking.take(&be, &limits(), 1), None);
    assert_eq!(parking.need(), Some(Need::Urgent), "the next STARTs try again");
    assert_eq!(parking.drain().len(), 0);
}

#[test]
fn seats_come_back_and_are_taken_first() {
    let mut parking = Parking::new();
    let be = purpose("default/be", 7);
    parking.take(&be, &limits(), 1);
    fill(&mut parking);
    assert_eq!(parking.give_back(&be, 70), None);
    assert_eq!(parking.take(&be, &limits(), 1), Some(70));
    for seat in 0..PARKED_MAX - 2 {
        assert_eq!(parking.give_back(&be, seat as u32), None);
    }
    assert_eq!(parking.give_back(&be, 71), Some(71), "there are enough");
    assert_eq!(parking.give_back(&purpose("other", 7), 72), Some(72), "nobody asks for it");
    assert_eq!(parking.tick(2 * SECOND, || false).len(), PARKED_MAX - 2, "two starts in this second");
}

#[test]
fn scarcity_is_read_from_meminfo() {
    assert!(!memory_is_scarce("MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:   50 kB\n"));
    assert!(memory_is_scarce("MemTotal:       1000 kB\nMemAvailable:   49 kB\n"));
    assert!(!memory_is_scarce("nonsense"));
}
