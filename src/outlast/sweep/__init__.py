"""Sweeps: many runs, cut into packs, over the devices of a machine or a Ray cluster.

=================== ============================================================================
`candidates.py`     the runs of a sweep: axes crossed, or drawn at random
`packs.py`          runs that are trained as one, and how many seeds a pack has at most
`attempts.py`       every attempt at a pack has a folder of its own; one atomic claim is recorded
`work.py`           what is done with a pack, on whichever machine
`devices.py`        worker processes on the devices of this machine, and a queue of jobs for them
`cluster.py`        the same packs as tasks of a Ray cluster (`outlast[ray]`)
`ray_address.py`    where a cluster is: what is none is refused soon, with its cause
`ray_tasks.py`      what a task of the cluster does, and what it answers
`engine.py`         packs to their end: what is done already, what is lost, what is recorded
`halving.py`        successive halving: few seeds and steps first, the best go on
`record.py`         `sweep.json`: what is swept; another sweep in the folder is refused
`progress.py`       how far a sweep is: packs by state, seeds per second, time left
=================== ============================================================================

::

    sweep/
      sweep.json               what is swept
      NAME/                    the run folder of each run, once its pack is done
      .sweep/claimed/PACK/     the mark of a pack that is done
      .sweep/attempts/PACK/    what is not done yet; deleted when one attempt has claimed the pack
"""
