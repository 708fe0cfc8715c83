//! The front ends as the pool calls them, and the users of its volumes.

use super::{Pool, PoolEvent};
use crate::frontends::{FrontendCx, FrontendEvent, Frontends, Users};
use crate::ublk_device::UblkDevice;
use forebay_admin::MessageId;
use forebay_format::VolumeId;

impl Pool {
    /// Calls the front ends, and then handles their events.
    pub(super) fn with_frontends<R>(
        &mut self,
        call: impl FnOnce(&mut Frontends, &mut FrontendCx<'_>) -> R,
    ) -> R {
        let mut cx = FrontendCx {
            reactor: &mut self.reactor,
            engine: &self.engine,
            volumes: &self.volumes,
            guards: &self.guards,
            background: &mut self.background,
            tasks: &self.frontend_tasks,
            pool_name: &self.name,
            buffer_bytes: self.buffer_bytes,
            is_stopping: self.stopping,
            events: Vec::new(),
        };
        let result = call(&mut self.frontends, &mut cx);
        for event in cx.events {
            self.frontend_event(event);
        }
        result
    }

    fn frontend_event(&mut self, event: FrontendEvent) {
        match event {
            FrontendEvent::Exported(volume, uri, result) => self.exported(volume, &uri, result),
            FrontendEvent::Lost(volume, uri, loss) => self.export_lost(volume, &uri, loss),
            FrontendEvent::Back(volume, uri) => self.export_back(volume, &uri),
            FrontendEvent::Note(what) => self.emit(PoolEvent::Note(MessageId::ExportNote, what)),
            FrontendEvent::Refused(what) => self.frontends.nbd.note_refusal(what),
        }
    }

    /// Returns the devices of a volume, for a thread that may query the kernel about them.
    pub fn block_devices(&self, name: &str) -> Vec<UblkDevice> {
        self.find(name).map_or_else(Vec::new, |volume| self.frontends.block_devices(volume))
    }

    /// Returns the users of a volume, except those of its block devices.
    pub(super) fn users_of(&self, id: VolumeId) -> Users {
        let covered = self.served(id).map_or_else(Vec::new, |served| served.lost_exports.covered().collect());
        Users { covered, ..self.frontends.users(&self.reactor, id) }
    }

    /// Returns the users of the volume with this name; none if it does not exist.
    pub fn users(&self, name: &str) -> Users {
        self.find(name).map_or_else(Users::default, |id| self.users_of(id))
    }
}
