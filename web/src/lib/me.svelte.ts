/** Who is signed in with this browser, and signing out. */
import { get, ProblemError, signOut } from "./api";
import { live } from "./live.svelte";
import type { Role, Who } from "./model";
import { STAFF } from "./model";

const PAUSE_MS = 5_000;

class Me {
  who = $state.raw<Who | null>(null);
  /** Whether it is known yet who is there. */
  asked = $state(false);
  error = $state("");

  #timer: ReturnType<typeof setTimeout> | undefined;

  get role(): Role {
    return this.who?.role ?? "user";
  }

  get isStaff(): boolean {
    return STAFF.includes(this.role);
  }

  /** Whether the caller has one of these roles; no roles mean everybody. */
  may(roles?: readonly Role[]): boolean {
    return roles === undefined || roles.includes(this.role);
  }

  /** Find out who is there; while nobody answers, say why and ask again after a pause. */
  async find(): Promise<void> {
    clearTimeout(this.#timer);
    try {
      this.who = await get<Who>("/api/whoami");
      this.error = "";
      live.join(this.who);
    } catch (error) {
      const known = error instanceof ProblemError && error.status === 401;
      this.error = known ? "" : (error as Error).message;
      if (!known) this.#timer = setTimeout(() => void this.find(), PAUSE_MS);
    }
    this.asked = true;
  }

  async signOut(): Promise<void> {
    location.assign((await signOut()) || "/");
  }
}

export const me = new Me();
