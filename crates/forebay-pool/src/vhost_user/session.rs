//! State of a frontend's session, and the effect of its next message.
//!
//! Invariants
//! - The pool gets complete requests only: a ring whose size and location are known and checked.
//! - Each is executed before the next message is looked at.
//! - A message that cannot be executed ends the connection, unless it requests an acknowledgement.

use super::memory::{Mapped, Regions};
use super::{ControlRequest, Done, RINGS_MAX, Shared, Start};
use crate::may_wait::MayWait;
use forebay_export::vhost_user::{
    Counter, Header, InflightArea, Message, PROTOCOL_FEATURES, REGIONS_MAX, Region, RingAddresses, ack,
    config, protocol, reply, ring_state,
};
use forebay_export::virtio::block::feature;
use forebay_export::virtio::inflight::{Inflight, bytes_for};
use forebay_export::virtio::ring::{Agreed, Layout, SIZE_MAX};
use forebay_io::EventCounter;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Sends control requests to the pool; false if it has ended.
pub(super) type RequestSender = Box<dyn Fn(ControlRequest) -> bool + Send>;

const ENDED: &str = "the volume is no longer exported";

#[derive(Debug, Default)]
struct RingState {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    is_enabled: bool,
    is_started: bool,
    /// Used until the ring is started.
    call: Option<EventCounter>,
    error: Option<EventCounter>,
}

/// Bytes to send, and a descriptor with them.
pub(super) type Answer = (Vec<u8>, Option<OwnedFd>);

/// One frontend.
pub(super) struct Session<'a> {
    may_wait: &'a MayWait,
    shared: Arc<Shared>,
    send: &'a RequestSender,
    /// The negotiated features.
    features: Option<u64>,
    protocol: u64,
    regions: Regions,
    rings: Vec<RingState>,
    inflight: Option<(InflightArea, Arc<Mapped>)>,
}

impl<'a> Session<'a> {
    pub(super) fn new(may_wait: &'a MayWait, shared: Arc<Shared>, send: &'a RequestSender) -> Self {
        let rings = std::iter::repeat_with(RingState::default).take(usize::from(RINGS_MAX)).collect();
        Self {
            may_wait,
            shared,
            send,
            features: None,
            protocol: 0,
            regions: Regions::default(),
            rings,
            inflight: None,
        }
    }

    /// Executes a message; returns the answer if there is one.
    ///
    /// # Errors
    /// It cannot be executed: the connection is over.
    pub(super) fn follow(
        &mut self,
        header: &Header,
        message: Message,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Option<Answer>, String> {
        let wants_ack = header.wants_ack && self.protocol & protocol::REPLY_ACK != 0;
        match self.ask(&message) {
            Some(answer) => {
                let (body, descriptor) = answer?;
                Ok(Some((reply(header, &body), descriptor)))
            }
            None => {
                let done = self.obey(message, descriptors);
                if wants_ack {
                    let answer = ack(header, done.is_ok());
                    return Ok(Some((answer, None)));
                }
                done.map(|()| None)
            }
        }
    }

    /// The body of the answer to a message that requests something; `None` for other messages.
    fn ask(&mut self, message: &Message) -> Option<Result<Answer, String>> {
        let number = |value: u64| Ok((value.to_le_bytes().to_vec(), None));
        Some(match message {
            Message::GetFeatures => number(feature::ALL | PROTOCOL_FEATURES),
            Message::GetProtocolFeatures => number(protocol::ALL),
            Message::GetRings => number(u64::from(RINGS_MAX)),
            Message::GetRegionsMax => number(REGIONS_MAX as u64),
            Message::GetConfig { offset, bytes } => {
                // An empty answer means that there is no such part.
                Ok((config(&self.shared.device().config(), *offset, *bytes).unwrap_or_default(), None))
            }
            Message::GetRingBase { ring } => {
                self.stop_ring(*ring).map(|base| (ring_state(*ring, u32::from(base)).to_vec(), None))
            }
            Message::GetInflight(area) => {
                self.make_inflight(area).map(|(area, file)| (area.encode(), Some(file)))
            }
            _ => return None,
        })
    }

    fn obey(&mut self, message: Message, mut descriptors: Vec<OwnedFd>) -> Result<(), String> {
        match message {
            Message::SetFeatures(features) => return self.set_features(features),
            Message::SetProtocolFeatures(features) => match features & !protocol::ALL {
                0 => self.protocol = features,
                unknown => return Err(format!("protocol features {unknown:#x} were not offered")),
            },
            Message::SetMemory(regions) => {
                self.regions = Regions::new(self.may_wait, regions, descriptors)?;
                return self.give_memory();
            }
            Message::AddRegion(region) => return self.add_region(region, descriptors.pop()),
            Message::RemoveRegion(region) => {
                self.regions.remove(&region)?;
                return self.give_memory();
            }
            Message::SetRingSize { ring, size } => {
                let size =
                    u16::try_from(size).ok().filter(|size| *size <= SIZE_MAX && size.is_power_of_two());
                self.resting(ring)?.size =
                    size.ok_or("a ring has a power of two of descriptors, at most 1024")?;
            }
            Message::SetRingBase { ring, base } => self.resting(ring)?.base = base as u16,
            Message::SetRingAddresses { ring, addresses } => {
                let state = self.ring(ring)?;
                if state.is_started && state.addresses != Some(addresses) {
                    return Err(format!("ring {ring} cannot be moved while it is served"));
                }
                state.addresses = Some(addresses);
            }
            Message::SetCounter { counter, ring, .. } => {
                let counter_file = descriptors.pop().map(EventCounter::new).transpose();
                let file = counter_file.map_err(|error| format!("a counter of ring {ring}: {error}"))?;
                return self.set_counter(ring, counter, file);
            }
            Message::EnableRing { ring, on } => return self.enable(ring, on),
            Message::SetBackendChannel => {
                let channel = descriptors.pop().map(UnixStream::from).ok_or("there is no descriptor")?;
                if !(self.send)(ControlRequest::Channel(channel)) {
                    return Err(ENDED.into());
                }
            }
            Message::SetInflight(area) => return self.set_inflight(area, descriptors.pop()),
            // The guest can write no part of the configuration.
            Message::SetConfig => return Err("the configuration cannot be written".into()),
            _ => {}
        }
        Ok(())
    }

    /// Sends a request, and waits until it is executed.
    fn request<T>(&self, request: impl FnOnce(Done<T>) -> ControlRequest) -> Result<T, String> {
        let (done, carried_out) = sync_channel(1);
        if !(self.send)(request(done)) {
            return Err(ENDED.into());
        }
        carried_out.recv().map_err(|_| ENDED.into())
    }

    fn ring(&mut self, ring: u32) -> Result<&mut RingState, String> {
        let state = self.rings.get_mut(ring as usize);
        state.ok_or_else(|| format!("there is no ring {ring}; the first {RINGS_MAX} are served"))
    }

    /// A ring that is not being served.
    fn resting(&mut self, ring: u32) -> Result<&mut RingState, String> {
        let state = self.ring(ring)?;
        if state.is_started {
            Err(format!("ring {ring} cannot be changed while it is served"))
        } else {
            Ok(state)
        }
    }

    fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !(feature::ALL | PROTOCOL_FEATURES);
        if unknown != 0 {
            return Err(format!("features {unknown:#x} were not offered"));
        }
        let is_served = self.rings.iter().any(|ring| ring.is_started);
        if is_served && self.features != Some(features) {
            return Err("features cannot be changed while rings are served".into());
        }
        self.features = Some(features);
        Ok(())
    }

    // --- memory

    fn add_region(&mut self, region: Region, file: Option<OwnedFd>) -> Result<(), String> {
        let file = file.ok_or("there is no descriptor")?;
        self.regions.add(self.may_wait, region, file)?;
        if let Err(why) = self.give_memory() {
            let _ = self.regions.remove(&region); // it was just added
            return Err(why);
        }
        Ok(())
    }

    fn give_memory(&self) -> Result<(), String> {
        let memory = self.regions.memory()?;
        self.request(|done| ControlRequest::Memory(memory, done)).map(drop)
    }

    /// Creates memory that records the taken requests.
    fn make_inflight(&mut self, wanted: &InflightArea) -> Result<(InflightArea, OwnedFd), String> {
        let (rings, ring_size) = (wanted.rings, wanted.ring_size);
        if rings == 0 || rings > RINGS_MAX || ring_size == 0 || ring_size > SIZE_MAX {
            return Err(format!(
                "memory for {rings} rings of {ring_size} requests in flight is not possible"
            ));
        }
        let size_bytes = u64::from(rings) * bytes_for(ring_size);
        let area = InflightArea { size_bytes, file_offset: 0, rings, ring_size };
        let failed = |error| format!("memory for requests in flight: {error}");
        let file = memfd_create("forebay-inflight", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, size_bytes).map_err(failed)?;
        Ok((area, file))
    }

    fn set_inflight(&mut self, area: InflightArea, file: Option<OwnedFd>) -> Result<(), String> {
        let file = file.ok_or("there is no descriptor")?;
        let InflightArea { size_bytes, file_offset, rings, ring_size } = area;
        let fits = rings <= RINGS_MAX
            && (1..=SIZE_MAX).contains(&ring_size)
            && size_bytes >= u64::from(rings) * bytes_for(ring_size);
        if !fits {
            return Err(format!(
                "memory of {size_bytes} bytes is not for {rings} rings of {ring_size} requests in flight"
            ));
        }
        let memory = Mapped::area(self.may_wait, size_bytes, file_offset, file)?;
        self.inflight = Some((area, Arc::new(memory)));
        Ok(())
    }

    // --- rings

    fn set_counter(&mut self, ring: u32, counter: Counter, file: Option<EventCounter>) -> Result<(), String> {
        let state = self.ring(ring)?;
        match counter {
            Counter::Kick => {
                let kick = file.ok_or_else(|| format!("ring {ring} has no counter for kicks"))?;
                self.start_ring(ring, kick)
            }
            Counter::Call if state.is_started => {
                self.request(|done| ControlRequest::SetCall(ring as u16, file, done))
            }
            Counter::Call => {
                state.call = file;
                Ok(())
            }
            Counter::Error => {
                state.error = file;
                Ok(())
            }
        }
    }

    fn enable(&mut self, ring: u32, on: bool) -> Result<(), String> {
        let state = self.ring(ring)?;
        state.is_enabled = on;
        if state.is_started {
            self.request(|done| ControlRequest::Enable(ring as u16, on, done))
        } else {
            Ok(())
        }
    }

    fn start_ring(&mut self, ring: u32, kick: EventCounter) -> Result<(), String> {
        let features = self.features.ok_or("a ring is started before features were agreed on")?;
        let state = self.resting(ring)?;
        let (size, base) = (state.size, state.base);
        let RingAddresses { descriptors, used, available } =
            state.addresses.ok_or_else(|| format!("ring {ring} has no addresses"))?;
        let place = |what: &str, user| {
            let guest = self.regions.translate(user);
            guest.ok_or_else(|| format!("the {what} of ring {ring} are not in guest memory"))
        };
        let layout = Layout {
            size,
            descriptors: place("descriptors", descriptors)?,
            available: place("available entries", available)?,
            used: place("used entries", used)?,
        };
        let agreed = Agreed {
            event_idx: features & feature::EVENT_IDX != 0,
            indirect: features & feature::INDIRECT != 0,
        };
        let inflight = self.inflight_of(ring as u16, size)?;
        let state = self.ring(ring)?;
        let start = Start {
            ring: ring as u16,
            layout,
            agreed,
            features,
            base,
            inflight,
            // Without protocol features there is no message that enables a ring.
            is_enabled: state.is_enabled || features & PROTOCOL_FEATURES == 0,
            kick,
            call: state.call.take(),
            error: state.error.take(),
        };
        self.request(|done| ControlRequest::Start(Box::new(start), done))?
            .map_err(|why| format!("ring {ring}: {why}"))?;
        self.ring(ring)?.is_started = true;
        Ok(())
    }

    fn inflight_of(&self, ring: u16, size: u16) -> Result<Option<(Inflight, Arc<Mapped>)>, String> {
        let Some((area, memory)) = &self.inflight else { return Ok(None) };
        if ring >= area.rings {
            return Err(format!("ring {ring} has no memory for requests in flight"));
        }
        if size == 0 {
            return Err(format!("ring {ring} has no size"));
        }
        let inflight = Inflight::open(Arc::clone(&memory.memory), ring, area.ring_size, size);
        let inflight = inflight.map(|inflight| Some((inflight, Arc::clone(memory))));
        inflight.map_err(|error| format!("ring {ring}: {error}"))
    }

    fn stop_ring(&mut self, ring: u32) -> Result<u16, String> {
        let state = self.ring(ring)?;
        let base = state.base;
        let was_started = std::mem::replace(&mut state.is_started, false);
        let base =
            if was_started { self.request(|done| ControlRequest::Stop(ring as u16, done))? } else { base };
        let state = self.ring(ring)?;
        (state.base, state.call) = (base, None);
        Ok(base)
    }
}
