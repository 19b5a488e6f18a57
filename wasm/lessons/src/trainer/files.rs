//! Adapters and states as files, and back.

use anyhow::{Context as _, Result, bail};
use burn::module::AutodiffModule;
use kiln_embed::checkpoint::{
    AdapterBase, Files, adapts_tables, is_vector_adapter, load_adapters, load_vector_adapter,
    lora_base, save_adapters, save_vector_adapter,
};
use kiln_embed::embedder::EmbeddingModel;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::model::LoraConfig;
use kiln_embed::train::{SavedParameters, TrainModel, put_parameters};

use super::Trainer;
use crate::check::Check;
use crate::lessons::Split;
use crate::settings::AdapterKind;
use crate::state::{Kept, State};

impl<B: TrainingBackend> Trainer<B> {
    /// Goes on from adapters that were trained before, of the kind that is trained; where that was left open, of
    /// either. `fingerprint` is the SHA-256 of the model's manifest, where it has one.
    ///
    /// # Errors
    /// Files that are no adapters of this model.
    pub fn adapters(&mut self, files: &Files, fingerprint: Option<&str>) -> Result<()> {
        let kind = if is_vector_adapter(files) { AdapterKind::Adapter } else { AdapterKind::Lora };
        if kind != self.settings.kind && self.asked != AdapterKind::Auto {
            bail!("these adapters are of the other kind; make a trainer of kind \"auto\"");
        }
        if kind == AdapterKind::Adapter {
            let (adapter, base) = load_vector_adapter(files)?;
            base.check(&adapter, self.base.dimensions(), fingerprint)?;
            return self.begin_kind(kind, self.settings.lora()?, Some(adapter));
        }
        lora_base(files)?.check_model(fingerprint)?;
        if adapts_tables(files)? {
            bail!(
                "these adapters change the model's tables of tokens too, which are not taught further; merge them into the \
                 model with kiln export, and teach that"
            );
        }
        let model = self.base.valid();
        let (config, backbone) = (model.config().clone(), model.backbone().clone());
        let (backbone, lora) = load_adapters(backbone, &config, files, &self.device)?;
        let model = EmbeddingModel::<B>::from_inner(model.map_backbone(|_| backbone));
        self.set_adapters(kind, LoraConfig { dropout: 0.0, ..lora }, None, model);
        Ok(())
    }

    /// The adapters as two files, PEFT's or those of an adapter of vectors; `base` says of which model they are.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn adapter(&self, base: &AdapterBase) -> Result<Files> {
        let model = self.train_model.model.valid();
        if self.settings.kind == AdapterKind::Adapter {
            let adapter = model.dense().last().context("the model has no adapter of vectors")?;
            return Ok(save_vector_adapter(&adapter.to_adapter()?, base)?);
        }
        Ok(save_adapters(model.backbone(), model.config(), &self.lora, base)?)
    }

    /// All that is needed to go on from here, as files. `base` is what tells the model, in its precision, from others.
    ///
    /// # Errors
    /// Nothing was begun, or values that cannot be read back.
    pub fn state(&self, base: Option<&str>) -> Result<Files> {
        let run = self.run.as_ref().context("nothing is taught yet; begin with lessons")?;
        let saved = |model: &TrainModel<B>| SavedParameters::of(model, false);
        let (now, start) = (saved(&self.train_model)?, saved(&run.start)?);
        let best = run.best.as_deref().map(saved).transpose()?;
        let state = State {
            base: base.map(String::from),
            settings: self.settings.clone(),
            lora: self.lora.clone(),
            plan: run.plan.clone(),
            most: run.most,
            taught: run.split.taught.clone(),
            held_back: run.split.held_back.clone(),
            texts: run.check.texts.clone(),
            sampler: run.sampler.clone(),
            progress: run.progress.clone(),
            ids: now.ids.clone(),
        };
        state.to_files([Some(now), Some(start), best], self.first.as_ref(), run.optimizer.state()?)
    }

    /// Goes on from a state of a trainer of the same model, by what `base` says of it.
    ///
    /// # Errors
    /// Files that are no such state, or one of another model.
    pub fn restore(&mut self, files: &Files, base: Option<&str>) -> Result<()> {
        let Kept { state, parameters, first, optimizer } = State::from_files(files)?;
        if state.base.as_deref().zip(base).is_some_and(|(own, other)| own != other) {
            bail!(
                "the state is of another model, or of other weights of it; begin anew with this one"
            );
        }
        let kind = state.settings.kind.of(self.base.config());
        let other = state.settings.resolved(kind) != self.settings.resolved(kind);
        if other || (kind != self.settings.kind && self.asked != AdapterKind::Auto) {
            bail!("the state is of a trainer with other settings; make one with those");
        }
        self.begin_kind(kind, state.lora, first)?;
        let split = Split { taught: state.taught, held_back: state.held_back };
        let check = Check::new(&split.held_back, state.texts.iter(), state.plan.check_texts);
        self.begin_with(split, check, state.plan)?;
        let put = |weights| {
            let model = *self.train_model.clone();
            put_parameters(model, &state.ids, weights, &self.device).map(Box::new)
        };
        let [now, start, best] = parameters.map(|weights| weights.map(put).transpose());
        let missing = "the state lacks some parameters";
        let (now, start) = (now?.context(missing)?, start?.context(missing)?);
        let run = self.run.as_mut().context("nothing was begun")?;
        for (group, bytes) in optimizer.into_iter().enumerate() {
            run.optimizer.restore(group, bytes, |_| true, &self.device)?;
        }
        (run.sampler, run.progress, run.most) = (state.sampler, state.progress, state.most);
        (run.start, run.best) = (start, best?);
        self.train_model = now;
        Ok(())
    }
}
