//! Which share of the files a process has.

use std::str::FromStr;

/// One of several shares, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// All files.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Whether the file at a place of the sorted list is in the share.
    pub fn has(self, place: usize) -> bool {
        place % self.count == self.index
    }

    fn new(index: usize, count: usize) -> Result<Self, String> {
        match index < count {
            true => Ok(Self { index, count }),
            false => Err(format!("share {index} of {count}: shares are counted from 0")),
        }
    }

    /// What a scheduler's variables say: SLURM's array jobs, Kubernetes' indexed jobs (which do not say how many
    /// there are: `count` does), and what torchrun and others set. With `count`, tasks of an array of fewer are the shares of
    /// their own numbers: what is sent again of a larger one.
    fn of_scheduler(
        count: Option<usize>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let number = |name: &str| match variable(name) {
            Some(text) => {
                let number = text.trim().parse::<usize>();
                number.map(Some).map_err(|_| format!("{name} is {text:?}, and no number"))
            }
            None => Ok(None),
        };
        if let Some(own) = number("SLURM_ARRAY_TASK_ID")? {
            let of_array = |name: &str| number(&format!("SLURM_ARRAY_TASK_{name}"));
            let (tasks, first) = (of_array("COUNT")?, of_array("MIN")?.unwrap_or(0));
            let step = of_array("STEP")?.unwrap_or(1).max(1);
            if count.is_some() && count != tasks {
                return Self::new(own, count.unwrap_or_default());
            }
            let (Some(tasks), Some(place)) = (tasks, own.checked_sub(first)) else {
                return Err(
                    "SLURM_ARRAY_TASK_ID is set, and nothing says of how many shares; write auto/N"
                        .into(),
                );
            };
            let last = of_array("MAX")?.unwrap_or(first + (tasks.max(1) - 1) * step);
            if last.checked_sub(first) != Some((tasks.max(1) - 1) * step) || place % step != 0 {
                return Err(format!(
                    "SLURM's array has gaps ({tasks} tasks from {first} to {last}), so that shares cannot be counted; \
                     write auto/N with the N of the whole array"
                ));
            }
            return Self::new(place / step, tasks);
        }
        for (index, counts) in [("JOB_COMPLETION_INDEX", None), ("RANK", Some("WORLD_SIZE"))] {
            let Some(own) = number(index)? else { continue };
            let said = counts.map_or(Ok(None), number)?;
            let Some(count) = count.or(said) else {
                return Err(format!(
                    "{index} is set, and nothing says of how many shares; write auto/N"
                ));
            };
            return Self::new(own, count);
        }
        Err("none of SLURM_ARRAY_TASK_ID, JOB_COMPLETION_INDEX and RANK is set; write I/N".into())
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let variable = |name: &str| std::env::var(name).ok();
        let number = |text: &str| {
            text.parse::<usize>().map_err(|_| format!("{text:?} is no number; write I/N, or auto"))
        };
        match text.split_once('/') {
            None if text == "auto" => Self::of_scheduler(None, variable),
            Some(("auto", count)) => Self::of_scheduler(Some(number(count)?), variable),
            Some((index, count)) => Self::new(number(index)?, number(count)?),
            None => Err("write I/N, such as 0/8, or auto".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_in_one_share() {
        let shards: Vec<Shard> = (0..3).map(|i| format!("{i}/3").parse().unwrap()).collect();
        for place in 0..20 {
            assert_eq!(shards.iter().filter(|shard| shard.has(place)).count(), 1);
        }
        assert!(Shard::ALL.has(7));
    }

    #[test]
    fn schedulers_say_which_share() {
        let of = |count, set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Shard::of_scheduler(count, |name| {
                set.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
            })
        };
        let slurm = [
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_ARRAY_TASK_COUNT", "4"),
            ("SLURM_ARRAY_TASK_MIN", "5"),
        ];
        assert_eq!(of(None, &slurm).unwrap(), Shard { index: 2, count: 4 });
        assert_eq!(of(Some(4), &slurm).unwrap(), Shard { index: 2, count: 4 });
        // Some of a larger array, sent again.
        assert_eq!(of(Some(64), &slurm).unwrap(), Shard { index: 7, count: 64 });
        let array = |id, count, first, last, step| {
            let names = ["ID", "COUNT", "MIN", "MAX", "STEP"];
            let values: [&str; 5] = [id, count, first, last, step];
            names
                .map(|name| format!("SLURM_ARRAY_TASK_{name}"))
                .into_iter()
                .zip(values)
                .collect::<Vec<_>>()
        };
        let of_array = |count, set: &[(String, &str)]| {
            let set: Vec<(&str, &str)> =
                set.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            of(count, &set)
        };
        let steps = array("62", "32", "0", "62", "2");
        assert_eq!(of_array(None, &steps).unwrap(), Shard { index: 31, count: 32 });
        let list = array("5", "2", "2", "5", "1");
        assert!(of_array(None, &list).unwrap_err().contains("gaps"));
        assert_eq!(of_array(Some(64), &list).unwrap(), Shard { index: 5, count: 64 });
        assert!(of_array(Some(2), &list).is_err());
        let job = [("JOB_COMPLETION_INDEX", "3")];
        assert_eq!(of(Some(8), &job).unwrap(), Shard { index: 3, count: 8 });
        assert!(of(None, &job).unwrap_err().contains("auto/N"));
        let ranks = [("RANK", "1"), ("WORLD_SIZE", "2")];
        assert_eq!(of(None, &ranks).unwrap(), Shard { index: 1, count: 2 });
        assert!(of(None, &[]).unwrap_err().contains("I/N"));
        assert!(of(None, &[("RANK", "two")]).unwrap_err().contains("RANK"));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for text in ["", "3", "1/0", "4/4", "-1/2", "a/b", "1/2/3"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
        }
    }
}
