// What comes when it is needed: the pages for a team, by the first part of their address, and what they share with other pages.
import type { ComponentType } from "preact";
import { Alerts } from "./alerts";
import { AddVersion, Models } from "./models";
import { Queue } from "./queue";
import { Usage } from "./usage";
import { Users } from "./users";

export const parts: Record<string, ComponentType<any>> = { queue: Queue, models: Models, usage: Usage, alerts: Alerts, users: Users, "add-version": AddVersion };
