//! Hooks: functions of the program that are called when a task is spawned, polled and ends. The face calls them itself,
//! for tasks of both schedulers.

use crate::task;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

/// A task, as hooks see it.
#[derive(Debug)]
pub struct TaskMeta<'a> {
    id: task::Id,
    spawned_at: &'static Location<'static>,
    _task: std::marker::PhantomData<&'a ()>,
}

impl TaskMeta<'_> {
    pub(crate) fn new(id: task::Id, spawned_at: &'static Location<'static>) -> Self {
        Self { id, spawned_at, _task: std::marker::PhantomData }
    }

    /// Returns the task's id.
    pub fn id(&self) -> task::Id {
        self.id
    }

    /// Returns where the program spawned the task.
    pub fn spawned_at(&self) -> &'static Location<'static> {
        self.spawned_at
    }
}

type Hook = Arc<dyn Fn(&TaskMeta<'_>) + Send + Sync>;

/// The hooks of a runtime.
#[derive(Default, Clone)]
pub(crate) struct TaskHooks {
    pub(crate) spawn: Option<Hook>,
    pub(crate) before_poll: Option<Hook>,
    pub(crate) after_poll: Option<Hook>,
    pub(crate) terminate: Option<Hook>,
}

impl TaskHooks {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { spawn, before_poll, after_poll, terminate } = self;
        [spawn, before_poll, after_poll, terminate].iter().all(|hook| hook.is_none())
    }

    pub(crate) fn on_spawn(&self, task: &TaskMeta<'_>) {
        self.spawn.iter().for_each(|hook| hook(task));
    }

    pub(crate) fn before_poll(&self, task: &TaskMeta<'_>) {
        self.before_poll.iter().for_each(|hook| hook(task));
    }

    pub(crate) fn after_poll(&self, task: &TaskMeta<'_>) {
        self.after_poll.iter().for_each(|hook| hook(task));
    }

    pub(crate) fn on_terminate(&self, task: &TaskMeta<'_>) {
        self.terminate.iter().for_each(|hook| hook(task));
    }
}

impl fmt::Debug for TaskHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHooks").finish_non_exhaustive()
    }
}

/// The hooks of tokio's runtimes, whose handles have no room for them. An entry stays for the life of the process.
static OF_TOKIOS: Mutex<Option<HashMap<super::Id, Arc<TaskHooks>>>> = Mutex::new(None);
/// Whether there are entries.
static HAS_ANY: AtomicBool = AtomicBool::new(false);

/// Sets the hooks of a runtime of tokio's.
pub(crate) fn set(runtime: super::Id, hooks: TaskHooks) {
    let mut all = OF_TOKIOS.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(runtime, Arc::new(hooks));
    // ORDERING: Release; pairs with the Acquire in `of`. The handle of the runtime comes later than this call anyway.
    HAS_ANY.store(true, Release);
}

/// The hooks of a runtime of tokio's.
pub(crate) fn of(runtime: super::Id) -> Option<Arc<TaskHooks>> {
    // ORDERING: Acquire; see `set`.
    if !HAS_ANY.load(Acquire) {
        return None;
    }
    let all = OF_TOKIOS.lock().unwrap_or_else(PoisonError::into_inner);
    all.as_ref()?.get(&runtime).cloned()
}
